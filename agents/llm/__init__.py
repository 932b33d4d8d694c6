"""Language models behind one small port: any OpenAI-compatible endpoint, and one that needs none."""
