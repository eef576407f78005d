"""The prompt producer: from a source of prompts to numbered groups, by credit."""
