"""The one renderer between chat messages and token ids.

The chat template is rendered with placeholders where the contents go, and its own text and the contents are
encoded apart: what a task, an environment or a context says can therefore never become a special token,
and the place of every content in the ids is known. A turn that was sampled is never encoded again: a
conversation grows only by appending to its ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from transformers import PreTrainedTokenizerBase

from lecritique.core.errors import ConfigurationError
from lecritique.core.task import Message
from lecritique.core.trajectory import ContextInsertion

Placement = Literal["system_prefix", "user_suffix"]

# Private-use characters: no template tests for them, trims them or splits on them.
_PLACEHOLDER = "\ue000{}\ue001"


@dataclass(frozen=True, kw_only=True)
class _Rendering:
    """Ids of a conversation, and per message the index after the last token of its content."""

    token_ids: list[int]
    content_ends: tuple[int, ...]


class ChatRenderer:
    """Messages to token ids and back, for one tokenizer and its chat template.

    Contents go in verbatim: a template that trims or cuts them (reasoning of earlier turns) does not get
    to see them.

    Raises:
        ConfigurationError: on construction, when the tokenizer has no chat template or one whose
            conversations cannot be continued by appending.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
        if not tokenizer.chat_template:
            raise ConfigurationError(
                f"tokenizer {self._name!r} has no chat template; an instruction-tuned model with one is needed"
            )
        self._special_ids = frozenset(tokenizer.all_special_ids) | frozenset(
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        )
        self._bos_id = self._template_bos()
        self._turn_end = self._template_turn_end()
        self.self_check()

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a sampled turn: the template's end of turn and the tokenizer's end of sequence."""
        eos = self._tokenizer.eos_token_id
        return frozenset({self._turn_end} if eos is None else {self._turn_end, eos})

    @property
    def bos_id(self) -> int | None:
        """The token that the template puts once, in front of everything; None when there is none."""
        return self._bos_id

    def render_prompt(self, messages: Sequence[Message]) -> NDArray[np.int64]:
        """Ids of the messages and the generation prompt after them."""
        return np.array(self._render(messages, generation_prompt=True).token_ids, dtype=np.int64)

    def extend(self, token_ids: ArrayLike, new_messages: Sequence[Message]) -> NDArray[np.int64]:
        """Append what the template puts after a finished assistant turn, the new messages and the generation prompt.

        Args:
            token_ids: the conversation so far, its last token being the stop token of the sampled turn.
            new_messages: what the environment says next.

        Returns:
            Ids that begin with `token_ids`.

        Raises:
            ValueError: when the last token is no stop token (the turn was cut by the token limit).
        """
        ids = np.asarray(token_ids, dtype=np.int64)
        if len(ids) == 0 or int(ids[-1]) not in self.stop_ids:
            last = int(ids[-1]) if len(ids) else None
            raise ValueError(f"a turn that ends on token {last} was cut and cannot be continued: no stop token")
        tail = self._continuation(new_messages)
        # A turn that ended on another stop token keeps it and gets the template's end of turn as well.
        added = tail[1:] if int(ids[-1]) == self._turn_end else tail
        return np.concatenate([ids, np.array(added, dtype=np.int64)])

    def decode(self, token_ids: ArrayLike) -> str:
        """Text of a sampled turn without the stop token at its end; other special tokens stay visible."""
        ids = [int(i) for i in np.asarray(token_ids, dtype=np.int64)]
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_texts(self, token_ids: ArrayLike) -> list[str]:
        """The text of each token alone, for display; bytes of a split character show as U+FFFD."""
        ids = [int(i) for i in np.asarray(token_ids, dtype=np.int64)]
        return [
            str(self._tokenizer.decode([i], skip_special_tokens=False, clean_up_tokenization_spaces=False)) for i in ids
        ]

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text in which nothing is a special token."""
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        return [int(i) for i in ids]

    def context_insertion(
        self, prompt_ids: ArrayLike, messages: Sequence[Message], text: str, placement: Placement
    ) -> ContextInsertion:
        """Where and as which ids a hidden context goes into the policy's own ids (method sheet, section 4).

        `system_prefix` is one closed system message in front of everything but BOS. `user_suffix` is text at
        the end of the last user message of `messages`, before that message's closing template tokens.

        Args:
            prompt_ids: ids of the trajectory; they begin with `render_prompt(messages)`.
            messages: the opening messages of the task.
            text: the context, already worded.
            placement: one of the two above.

        Raises:
            ConfigurationError: a blank text, an unknown placement, or a template without system messages.
            ValueError: when `prompt_ids` do not begin with the rendered messages.
        """
        if not isinstance(text, str) or not text.strip():
            raise ConfigurationError(f"a privileged context must be text that is not blank, got {text!r}")
        rendering = self._render(messages, generation_prompt=True)
        ids = np.asarray(prompt_ids, dtype=np.int64)
        if list(ids[: len(rendering.token_ids)]) != rendering.token_ids:
            raise ValueError("the ids given do not begin with the rendered opening messages")
        if placement == "system_prefix":
            position = 1 if self._bos_id is not None and ids[0] == self._bos_id else 0
            return ContextInsertion(position=position, token_ids=np.array(self._system_message(text), dtype=np.int64))
        if placement == "user_suffix":
            last_user = max(i for i, message in enumerate(messages) if message.role == "user")
            position = rendering.content_ends[last_user]
            return ContextInsertion(position=position, token_ids=np.array(self.encode_text(text), dtype=np.int64))
        raise ConfigurationError(f"context placement {placement!r} is neither 'system_prefix' nor 'user_suffix'")

    def self_check(self) -> None:
        """Prove on a dummy conversation what the rest relies on.

        Raises:
            ConfigurationError: when encoding in pieces changes the text, BOS is not single, or a second turn
                does not append.
        """
        opening = [Message(role="user", content="a b")]
        following = [Message(role="user", content="c d")]
        whole = [*opening, Message(role="assistant", content="x"), *following]
        pieces = self._render(whole, generation_prompt=True).token_ids
        texts = ["a b", "x", "c d"]
        text = self._template_text(whole, generation_prompt=True)
        for i, content in enumerate(texts):
            text = text.replace(_PLACEHOLDER.format(i), content)
        expected = self._tokenizer.decode(self._encode_template(text))
        if self._tokenizer.decode(pieces) != expected:
            self._refuse("encodes a conversation differently in pieces than as a whole")
        if self._bos_id is not None and pieces.count(self._bos_id) != 1:
            self._refuse(f"puts {pieces.count(self._bos_id)} BOS tokens instead of one")
        turn = [*self.render_prompt(opening), *self.encode_text("x"), self._turn_end]
        longer = self.extend(turn, following)
        if list(longer[: len(turn)]) != turn or self._tokenizer.decode(longer[len(turn) :]) == "":
            self._refuse("does not append a second turn")

    def _continuation(self, new_messages: Sequence[Message]) -> list[int]:
        """Ids of everything after an assistant message's content, from its end-of-turn token on."""
        before = [Message(role="user", content="-"), Message(role="assistant", content="-")]
        rendering = self._render([*before, *new_messages], generation_prompt=True)
        return rendering.token_ids[rendering.content_ends[1] :]

    def _system_message(self, text: str) -> list[int]:
        """Ids of one closed system message, without BOS."""
        before, after = self._system_frame()
        ids = self._encode_template(before)
        if self._bos_id is not None and ids[:1] == [self._bos_id]:
            ids = ids[1:]
        return [*ids, *self.encode_text(text), *self._encode_template(after)]

    def _system_frame(self) -> tuple[str, str]:
        """Template text before and after the content of a leading system message."""
        system, user = Message(role="system", content="-"), Message(role="user", content="-")
        both = self._try_template_text([system, user])
        if both is None or _PLACEHOLDER.format(0) not in both:
            self._refuse("takes no system message; use context placement 'user_suffix'")
        alone = self._try_template_text([system])
        if alone is None or not both.startswith(alone):
            # Templates that insist on a user message: what remains in front of the conversation without system.
            plain = self._template_text([user], generation_prompt=False).replace(
                _PLACEHOLDER.format(0), _PLACEHOLDER.format(1)
            )
            bos = str(self._tokenizer.bos_token) if self._bos_id is not None else ""
            plain = plain.removeprefix(bos)
            if not both.endswith(plain):
                self._refuse("has no closed system message; use context placement 'user_suffix'")
            alone = both.removesuffix(plain)
        if alone.count(_PLACEHOLDER.format(0)) != 1:
            self._refuse("has no closed system message; use context placement 'user_suffix'")
        before, after = alone.split(_PLACEHOLDER.format(0))
        return before, after

    def _render(self, messages: Sequence[Message], *, generation_prompt: bool) -> _Rendering:
        text = self._template_text(messages, generation_prompt=generation_prompt)
        ids: list[int] = []
        ends: list[int] = []
        for i, message in enumerate(messages):
            before, found, text = text.partition(_PLACEHOLDER.format(i))
            if not found:
                self._refuse(f"leaves out the content of message {i + 1} ({message.role}) of {len(messages)}")
            ids += self._encode_template(before)
            ids += self.encode_text(message.content)
            ends.append(len(ids))
        ids += self._encode_template(text)
        return _Rendering(token_ids=ids, content_ends=tuple(ends))

    def _template_text(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """The rendered template with numbered placeholders as contents."""
        rows = [{"role": m.role, "content": _PLACEHOLDER.format(i)} for i, m in enumerate(messages)]
        try:
            return str(
                self._tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=generation_prompt)
            )
        except Exception as error:  # Jinja templates raise errors of their own making
            roles = ", ".join(m.role for m in messages)
            self._refuse(f"refuses messages of roles {roles}: {_first_line(error)}", error)

    def _try_template_text(self, messages: Sequence[Message]) -> str | None:
        try:
            return self._template_text(messages, generation_prompt=False)
        except ConfigurationError:
            return None

    def _encode_template(self, text: str) -> list[int]:
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=False, verbose=False)["input_ids"]
        return [int(i) for i in ids]

    def _template_bos(self) -> int | None:
        """BOS if the template begins with it and uses it nowhere else (some name their turn opener BOS)."""
        bos_token, bos_id = self._tokenizer.bos_token, self._tokenizer.bos_token_id
        if bos_token is None:
            return None
        dummy = [Message(role=role, content="-") for role in ("user", "assistant", "user")]
        text = self._template_text(dummy, generation_prompt=True)
        return int(bos_id) if text.startswith(bos_token) and text.count(bos_token) == 1 else None

    def _template_turn_end(self) -> int:
        """The special token that the template puts right after an assistant message."""
        tail = self._continuation([Message(role="user", content="-")])
        if not tail or tail[0] not in self._special_ids:
            self._refuse("does not end an assistant message with a special token, so a turn has no stop token")
        return tail[0]

    def _refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise ConfigurationError(f"the chat template of {self._name!r} {reason}") from cause


def _first_line(error: Exception) -> str:
    lines: Iterable[str] = str(error).splitlines()
    return next(iter(lines), type(error).__name__)
