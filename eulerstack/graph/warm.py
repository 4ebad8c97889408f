"""What the first model that a process loads makes transformers compute for all that follow: renames of the weights of
every architecture it knows, a thousand regular expressions. Imported by the warm process, before it forks."""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("llama")
