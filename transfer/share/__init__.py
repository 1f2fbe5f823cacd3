"""Model cards of weights, for other people. Paths of this machine are removed on the way; nothing is uploaded."""
