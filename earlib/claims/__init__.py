"""The paper's claims, decided from records."""
