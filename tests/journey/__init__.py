"""The journey of docs/guide/afternoon.md: the page itself, and mistakes on the way."""
