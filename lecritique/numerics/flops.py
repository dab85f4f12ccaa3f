"""How much arithmetic a decoder does, by the usual estimate. For comparing arms, not for timing a machine."""

from __future__ import annotations


def forward_flops(tokens: int, pairs: int, *, parameters: int, attention_width: int) -> int:
    """Floating-point operations of reading sequences once.

        FLOPs = 2 P n + 4 W m,   n = sum of T,   m = sum of T (T + 1) / 2 over sequences of T tokens

    Every weight multiplies and adds once a token; every token meets itself and those before it once to be weighed and
    once to be summed. Softmax, norms and activations are left out, and so are padding, what a cache saves between
    sequences that begin alike, and that an output layer is read at some tokens only. Generation reads each sequence
    once, as its keys and values are kept.

    Args:
        tokens: n.
        pairs: m.
        parameters: P, weights that multiply: an embedding that is only looked up is none.
        attention_width: W, heads times their width, summed over the layers.

    Raises:
        ValueError: a negative number.

    Source: Kaplan et al. 2020 (arXiv:2001.08361), 2.1, with the causal half of the attention counted exactly.
    """
    if min(tokens, pairs, parameters, attention_width) < 0:
        raise ValueError(
            f"counts must not be negative, got tokens={tokens}, pairs={pairs}, parameters={parameters}, "
            f"attention_width={attention_width}"
        )
    return 2 * parameters * tokens + 4 * attention_width * pairs


def training_flops(tokens: int, pairs: int, *, parameters: int, attention_width: int) -> int:
    """Floating-point operations of reading sequences and taking the gradient of every weight.

        FLOPs = 3 (2 P n + 4 W m)

    The backward pass is two forward passes' worth: one for the inputs, one for the weights. Nothing that is computed
    again to save memory is in it, nor the optimizer.

    Args:
        tokens: n, as of `forward_flops`.
        pairs: m.
        parameters: P.
        attention_width: W.

    Raises:
        ValueError: a negative number.

    Source: Kaplan et al. 2020 (arXiv:2001.08361), 2.1.
    """
    return 3 * forward_flops(tokens, pairs, parameters=parameters, attention_width=attention_width)
