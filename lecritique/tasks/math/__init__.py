"""Mathematics problems with a checkable final answer."""
