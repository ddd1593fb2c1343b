"""The paper's claims, decided on the numbers that it prints and on recorded runs."""

from earlib import extra

with extra("paper"):
    from earlib.claims.decisions import claim_rows, claim_texts, decide
    from earlib.claims.evidence import read_runs, same_source
    from earlib.claims.tables import contents, open_questions, sections, show_claims, show_words, tally, verdict_counts

__all__ = ["claim_rows", "claim_texts", "contents", "decide", "open_questions", "read_runs", "sections", "show_claims"]
__all__ += ["same_source", "show_words", "tally", "verdict_counts"]
