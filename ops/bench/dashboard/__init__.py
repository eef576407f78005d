"""`rlweave bench dashboard`: how soon a long run can be looked at, and what memory that takes."""
