"""The round, the one owner of the client axis, and the host's loop around them."""
