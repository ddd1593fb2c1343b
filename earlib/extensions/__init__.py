"""Extensions beyond the paper."""
