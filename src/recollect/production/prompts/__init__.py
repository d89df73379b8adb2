"""Where prompts come from: lists, JSONL files, Hugging Face datasets."""
