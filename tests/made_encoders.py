"""Tiny encoders with random weights, of each architecture in the registry, in the files of their publishers."""

import json

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = ["red", "green", "blue", "cat", "dog", "runs", "sleeps", "nan", "Instruct:", "Query:", "answer", "search"]
END = "<|endoftext|>"


def bert_files(folder, kind, words=WORDS, **shape):
    """A plain BERT without any description of sentence-transformers, in the old form of weights; or an MPNet."""
    special, shape = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], SHAPE | shape
    if kind == "contriever":
        (folder / "vocab.txt").write_text("\n".join([*special, *words]))
        tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"))
        config, model = transformers.BertConfig, transformers.BertModel
    else:
        vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>", *words]
        tokenizer = transformers.MPNetTokenizerFast(vocab={word: number for number, word in enumerate(vocabulary)})
        config, model = transformers.MPNetConfig, transformers.MPNetModel
    tokenizer.save_pretrained(folder)
    made = model(config(vocab_size=len(tokenizer), initializer_range=0.5, max_position_embeddings=600, **shape))
    made.config.save_pretrained(folder)
    if kind == "contriever":
        torch.save(made.state_dict(), folder / "pytorch_model.bin")
    else:
        made.save_pretrained(folder)
        describe(folder, "mean", shape["hidden_size"])


def qwen_files(folder, kind, side="left", words=WORDS, head=24, **shape):
    """A Qwen2 decoder whose tokenizer appends nothing, with the pooling of its kind and stella's linear head."""
    shape = SHAPE | shape
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator([" ".join(words)] * 3, trainers.BpeTrainer(initial_alphabet=alphabet))
    bpe = json.loads(trained.to_str())["model"]
    pieces = {"vocab": {**bpe["vocab"], END: len(bpe["vocab"])}, "merges": [tuple(pair) for pair in bpe["merges"]]}
    special = {"eos_token": END, "pad_token": END, "unk_token": END}
    tokenizer = transformers.Qwen2Tokenizer(**pieces, **special, padding_side=side)
    tokenizer.save_pretrained(folder)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), num_key_value_heads=1, initializer_range=0.5, max_position_embeddings=4096, **shape
    )
    transformers.Qwen2Model(config).save_pretrained(folder)
    describe(folder, "lasttoken" if kind == "gte" else "mean", shape["hidden_size"])
    if kind == "stella":
        from sentence_transformers.base.modules import Dense

        (folder / "2_Dense_1024").mkdir()
        linear = Dense(shape["hidden_size"], head, activation_function=torch.nn.Identity())
        linear.save(str(folder / "2_Dense_1024"))


def describe(folder, pooling, width):
    """Describe the pooling as repositories of sentence-transformers do, in its older form."""
    (folder / "1_Pooling").mkdir()
    mode = {"mean": "pooling_mode_mean_tokens", "lasttoken": "pooling_mode_lasttoken"}[pooling]
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": width, mode: True}))
