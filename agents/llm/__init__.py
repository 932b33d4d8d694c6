"""Language models behind one small port: any OpenAI-compatible endpoint, and an offline one."""
