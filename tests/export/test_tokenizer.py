import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from eulerstack.errors import ExportError
from eulerstack.export import byte_bpe
from eulerstack.export.tokenizer import Contract, digest, resolve

TEXT = "Hello world, naïve café: 12345 \n\t x"
BYTES = Contract(type="byte_bpe")
IMPORTS = """
import sys
from eulerstack.export.tokenizer import digest
digest({"type": "hf", "pretrained": "gpt2"}, 50257)
print([m for m in ("torch", "transformers", "tokenizers", "huggingface_hub", "numpy") if m in sys.modules])
"""


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def home(shared_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("EULERSTACK_HOME", str(tmp_path))
    monkeypatch.setenv("EULERSTACK_CACHE", str(shared_cache))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no_hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def load(tmp_path):
    """`load(tokenizer)`: by transformers, from its files alone."""

    def load(tokenizer):
        folder = tmp_path / tokenizer.digest
        folder.mkdir()
        tokenizer.write(folder)
        return AutoTokenizer.from_pretrained(folder)

    return load


@pytest.fixture
def published(home):
    """`published(post, **config)`: a directory "theirs" with a tokenizer of 258 tokens as others publish them."""

    def published(post=None, **config):
        marks = ["<s>", "</s>"]
        vocabulary = {token: i for i, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *marks])}
        backend = Backend(models.BPE(vocabulary, []))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        backend.add_special_tokens(marks)
        backend.enable_truncation(4)
        backend.enable_padding(length=9, pad_token="</s>", pad_id=257)
        if post:
            backend.post_processor = post
        (home / "theirs").mkdir()
        (home / "theirs" / "tokenizer.json").write_text(backend.to_str())
        (home / "theirs" / "tokenizer_config.json").write_text(json.dumps(config))
        return Contract(type="hf", pretrained="theirs")

    return published


@pytest.mark.parametrize("size", [258, 320, 4001])
def test_transformers_loads_it_and_text_comes_back(load, size):
    tokenizer = resolve(BYTES, size, max_length=77)
    loaded = load(tokenizer)
    ids = loaded(TEXT)["input_ids"]
    assert len(loaded) == tokenizer.size == size
    assert loaded.decode(ids, skip_special_tokens=True) == TEXT
    assert (ids[0], ids[-1]) == (loaded.bos_token_id, loaded.eos_token_id) == (0, 1)
    assert loaded.model_max_length == 77
    assert set(loaded(TEXT)) == {"input_ids", "attention_mask"}
    assert json.loads(tokenizer.files["tokenizer_config.json"])["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_marks_are_added_by_the_file_itself(load, bos, eos):
    tokenizer = resolve(Contract(type="byte_bpe", add_bos=bos, add_eos=eos), 300)
    plain = Backend.from_buffer(tokenizer.files["tokenizer.json"])
    loaded = load(tokenizer)
    inner = plain.encode(TEXT, add_special_tokens=False).ids
    expected = [0] * bos + inner + [1] * eos
    assert plain.encode(TEXT).ids == loaded(TEXT)["input_ids"] == expected
    assert plain.encode(TEXT, TEXT).ids == loaded(TEXT, TEXT)["input_ids"] == expected * 2


def test_pad_and_extra_tokens_are_special_and_within_the_size(load):
    contract = Contract(type="byte_bpe", pad_token="<pad>")
    tokenizer = resolve(contract, 320, extra_tokens=("<think>", "<pad>", "</think>"))
    loaded = load(tokenizer)
    assert len(loaded) == tokenizer.size == 320
    assert [loaded.convert_tokens_to_ids(t) for t in ("<pad>", "<think>", "</think>")] == [317, 318, 319]
    assert (loaded.pad_token, loaded.pad_token_id, tokenizer.pad_token_id) == ("<pad>", 317, 317)
    assert loaded(["a", "bcd"], padding=True)["input_ids"][0][3:] == [317, 317]
    assert 318 in loaded("a<think>b")["input_ids"]
    assert loaded.decode(loaded("a<think>b")["input_ids"], skip_special_tokens=True) == "ab"


def test_without_a_pad_token_there_is_none():
    tokenizer = resolve(BYTES, 300)
    assert tokenizer.pad_token_id is None
    assert "pad_token" not in json.loads(tokenizer.files["special_tokens_map.json"])


def test_other_tokens_leave_the_ids_of_text_alone():
    plain, more = resolve(BYTES, 20_000), resolve(Contract(type="byte_bpe", pad_token="<pad>"), 20_000)
    one, two = (Backend.from_buffer(t.files["tokenizer.json"]).encode(TEXT).ids for t in (plain, more))
    assert one == two


def test_out_of_reach_is_a_stand_in_of_the_contracted_size():
    tokenizer = resolve(Contract(type="hf", pretrained="org/name"), 700, fetch=True)
    assert tokenizer.stand_in
    assert tokenizer.size == 700
    assert tokenizer.source == (
        "a stand-in for org/name: a byte-level BPE of 700 tokens trained on the embedded corpus"
    )
    asked_for = resolve(BYTES, 700)
    assert not asked_for.stand_in
    assert asked_for.digest == tokenizer.digest
    with pytest.raises(ExportError, match="cannot be reached, and its size is not known"):
        resolve(Contract(type="hf", pretrained="org/name"), None)


def test_a_published_tokenizer_keeps_its_tokens_and_loses_what_ties_it_to_a_version(published, load):
    contract = published(
        tokenizer_class="TokenizersBackend",
        backend="tokenizers",
        bos_token={"__type": "AddedToken", "content": "<s>", "lstrip": False},
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=4096,
    )
    tokenizer = resolve(contract, 300)
    assert not tokenizer.stand_in
    assert (tokenizer.size, tokenizer.bos_token_id, tokenizer.eos_token_id) == (258, 256, 257)
    config = json.loads(tokenizer.files["tokenizer_config.json"])
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "backend" not in config
    assert "unk_token" not in config  # it has no id; transformers would add one beyond the vocabulary
    loaded = load(tokenizer)
    assert (len(loaded), loaded.padding_side, loaded.model_max_length) == (258, "left", 4096)
    ids = loaded(TEXT)["input_ids"]
    assert (ids[0], ids[-1]) == (256, 257)
    assert loaded.decode(ids, skip_special_tokens=True) == TEXT


@pytest.mark.parametrize(
    "post",
    [
        processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", 256)]),
        processors.RobertaProcessing(("</s>", 257), ("<s>", 256)),
        processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single="$A </s> </s>", special_tokens=[("</s>", 257)]),
            ]
        ),
    ],
    ids=lambda post: type(post).__name__,
)
def test_the_contract_decides_on_the_marks_of_a_published_tokenizer(published, post):
    contract = published(post, bos_token="<s>", eos_token="</s>")
    for bos in (True, False):
        tokenizer = resolve(Contract(type="hf", pretrained=contract.pretrained, add_bos=bos, add_eos=False), 300)
        ids = Backend.from_buffer(tokenizer.files["tokenizer.json"]).encode("abcdef").ids
        assert len(ids) == 6 + bos
        assert (ids[0] == 256) == bos


def test_a_tokenizer_without_marks_gets_none(published):
    tokenizer = resolve(published(), 258)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None)
    assert len(Backend.from_buffer(tokenizer.files["tokenizer.json"]).encode("abcdef").ids) == 6


def test_more_tokens_than_the_vocabulary_is_an_error(published):
    contract = published(bos_token="<s>", eos_token="</s>")
    with pytest.raises(ExportError) as caught:
        resolve(contract, 257)
    assert str(caught.value).splitlines()[:2] == [
        "theirs: ExportError: tokenizer_contract: the tokenizer has 258 tokens, the model's vocabulary 257",
        "Fix: set model.vocab_size to 258 or more, or name another tokenizer",
    ]
    assert resolve(contract, 258).size == 258
    with pytest.raises(ExportError, match="has 259 tokens"):
        resolve(contract, 258, extra_tokens=("<think>",))


def test_a_file_that_is_no_tokenizer(home):
    (home / "theirs").mkdir()
    (home / "theirs" / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportError, match="cannot be read"):
        resolve(Contract(type="hf", pretrained="theirs"), 300)


def test_special_tokens_may_be_named_in_either_file_and_a_template_comes_along(published, home):
    contract = published(bos_token="<s>")
    (home / "theirs" / "special_tokens_map.json").write_text('{"bos_token": "a", "eos_token": {"content": "</s>"}}')
    (home / "theirs" / "chat_template.jinja").write_text("{{ messages }}")
    tokenizer = resolve(contract, 300)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257)
    assert tokenizer.files["chat_template.jinja"] == b"{{ messages }}"


def test_the_key_follows_content_and_arguments(published, home):
    contract = published(bos_token="<s>")
    keys = [
        digest(contract, 300),
        digest(contract, 301),
        digest(contract, 300, ("<think>",)),
        digest(BYTES, 300),
        digest(Contract(type="hf", pretrained="org/name"), 300),
        digest(Contract(type="byte_bpe", add_eos=False), 300),
    ]
    (home / "theirs" / "tokenizer_config.json").write_text('{"bos_token": "</s>"}')
    keys.append(digest(contract, 300))
    assert len({json.dumps(key, sort_keys=True) for key in keys}) == 7
    assert digest(contract, 300) == digest(contract, 300)


def test_the_key_needs_no_training_and_no_heavy_import(home, monkeypatch):
    monkeypatch.setattr(byte_bpe, "train", None)
    assert digest(BYTES, 12_345)["trained"]["vocab_size"] == 12_345
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_contract_may_come_as_a_block_or_as_json():
    @dataclass
    class Block:
        type: str = "byte_bpe"
        pretrained: None = None
        corpus: None = None
        add_bos: bool = False
        add_eos: bool = True
        pad_token: str = "<pad>"
        more: int = 0

    expected = Contract(type="byte_bpe", add_bos=False, pad_token="<pad>")
    assert Contract.of(Block()) == expected
    assert Contract.of({"type": "byte_bpe", "add_bos": False, "pad_token": "<pad>"}) == expected
    assert Contract.of(expected) == expected
    with pytest.raises(TypeError, match="pad_tokne"):
        Contract.of({"type": "byte_bpe", "pad_tokne": "<pad>"})
