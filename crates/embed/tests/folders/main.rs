//! Tests model folders with faults, each with its error message, and all valid formats of model
//! folders.
#![allow(clippy::disallowed_methods, reason = "a test creates the folder")]
#![allow(clippy::unwrap_used, reason = "a missing value fails the test")]

mod model;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use toolgate_embed::{CheckedModelFolder, EmbeddingModel};

use model::{NumberFormat, PIECES, config, model, tokenizer, weights, write};

/// Applies `change` to a new model folder, and checks the error of opening the folder.
#[track_caller]
fn check(change: impl FnOnce(&Path), expected: &str) {
    let folder = model();
    change(folder.path());
    let why = EmbeddingModel::open(folder.path()).expect_err("it is not a model").to_string();
    let shown = folder.path().display().to_string();
    assert_eq!(why.replace(&shown, "MODEL"), expected);
}

const AGAIN: &str = "copy the whole model folder again";
const ANOTHER: &str =
    "use a sentence-transformers model of the BERT family, such as all-MiniLM-L6-v2";

#[test]
fn a_missing_folder_or_file_is_refused() {
    let missing = "the file is missing; name a folder with a complete sentence-transformers model";
    check(
        |folder| fs::remove_dir_all(folder).unwrap(),
        "the folder `MODEL` does not exist; name one with a sentence-transformers model of the BERT \
         family (`config.json`, `model.safetensors`, `tokenizer.json`)",
    );
    for name in ["config.json", "model.safetensors", "1_Pooling/config.json"] {
        let expected = format!("`MODEL/{name}` cannot be read: {missing}");
        check(|folder| fs::remove_file(folder.join(name)).unwrap(), &expected);
    }
    check(
        |folder| fs::remove_file(folder.join("tokenizer.json")).unwrap(),
        &format!("`MODEL/tokenizer.json` is missing, and so is `vocab.txt`; {AGAIN}"),
    );
}

#[test]
fn an_unsupported_architecture_is_refused() {
    let with = |name: &'static str, value: Value| {
        move |folder: &Path| {
            let mut config = config();
            config[name] = value;
            write(folder, "config.json", &config.to_string());
        }
    };
    check(
        with("model_type", json!("roberta")),
        &format!("`MODEL/config.json` has the `model_type` `roberta`, not `bert`; {ANOTHER}"),
    );
    check(
        with("hidden_act", json!("swiglu")),
        &format!("`MODEL/config.json` has the unsupported `hidden_act` `swiglu`; {ANOTHER}"),
    );
    check(
        with("num_attention_heads", json!(3)),
        &format!(
            "`MODEL/config.json` has 3 heads, which do not divide a `hidden_size` of 8; {AGAIN}"
        ),
    );
    check(
        with("hidden_size", json!(0)),
        &format!("`MODEL/config.json` has `hidden_size` 0; it must be 1 to 16384; {AGAIN}"),
    );
    check(
        |folder| write(folder, "1_Pooling/config.json", r#"{"pooling_mode_max_tokens":true}"#),
        &format!(
            "`MODEL/1_Pooling/config.json` has an unsupported pooling; only the mean and the first token are supported; {ANOTHER}"
        ),
    );
    check(
        |folder| write(folder, "modules.json", r#"[{"path":"2_Dense","type":"x.Dense"}]"#),
        &format!(
            "`MODEL/modules.json` has a module `x.Dense` at `2_Dense`; only Transformer, Pooling \
             and Normalize are supported; {ANOTHER}"
        ),
    );
}

#[test]
fn truncated_or_unsuitable_weights_are_refused() {
    let full = weights(NumberFormat::F32, "");
    let cut = |bytes: usize| {
        let truncated = full[..bytes].to_vec();
        move |folder: &Path| fs::write(folder.join("model.safetensors"), truncated).unwrap()
    };
    let file = "`MODEL/model.safetensors`";
    check(cut(0), &format!("{file} is truncated: it has only 0 bytes; {AGAIN}"));
    let head = u64::from_le_bytes(full[..8].try_into().unwrap());
    let expected = format!(
        "{file} is not a safetensors file, or is truncated: its header would have {head} of 20 bytes; {AGAIN}"
    );
    check(cut(20), &expected);
    let short = full.len() - 1;
    let folder = model();
    cut(short)(folder.path());
    let why = EmbeddingModel::open(folder.path()).expect_err("it is truncated").to_string();
    let part = format!("is truncated: it has {short} bytes, but `");
    assert!(why.contains(&part) && why.contains(&format!("ends at {}", full.len())), "{why}");
    check(
        |folder| {
            let mut config = config();
            config["intermediate_size"] = json!(32);
            write(folder, "config.json", &config.to_string());
        },
        &format!(
            "{file} does not fit its `config.json`: `encoder.layer.0.intermediate.dense.weight` has \
             the shape [16, 8], not [32, 8]; {AGAIN}"
        ),
    );
    check(
        |folder| {
            let mut config = config();
            config["num_hidden_layers"] = json!(2);
            write(folder, "config.json", &config.to_string());
        },
        &format!("{file} has no tensor `encoder.layer.1.attention.self.query.weight`; {ANOTHER}"),
    );
    let mut broken = full.clone();
    let last = broken.len() - 4;
    broken[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let folder = model();
    fs::write(folder.path().join("model.safetensors"), broken).unwrap();
    let why = EmbeddingModel::open(folder.path()).expect_err("it has a NaN").to_string();
    assert!(why.contains("contains an invalid number"), "{why}");
}

#[test]
fn a_broken_tokenizer_is_refused() {
    let with = |change: fn(&mut Value)| {
        move |folder: &Path| {
            let mut content = tokenizer();
            change(&mut content);
            write(folder, "tokenizer.json", &content.to_string());
        }
    };
    let file = "`MODEL/tokenizer.json`";
    check(
        |folder| write(folder, "tokenizer.json", "{\"model\":"),
        &format!(
            "{file} has invalid content: EOF while parsing a value at line 1 column 9; {AGAIN}"
        ),
    );
    check(
        with(|content| content["model"]["unk_token"] = json!("[NONE]")),
        &format!(
            "{file} cannot read the character `\u{13000}`: WordPiece error: Missing [UNK] token \
             from the vocabulary; {AGAIN}"
        ),
    );
    check(
        with(|content| drop(content["model"]["vocab"].as_object_mut().unwrap().remove("[SEP]"))),
        &format!("{file} has no token `[SEP]`; {AGAIN}"),
    );
    check(
        with(|content| content["model"]["vocab"]["a"] = json!(9)),
        &format!("{file} gives `a` the id 9, but the model has 9 tokens; {AGAIN}"),
    );
}

#[test]
fn a_tokenizer_that_adds_unsuitable_tokens_is_refused() {
    let adding = |tokens: &'static [(&str, u32)]| {
        move |folder: &Path| {
            let mut content = tokenizer();
            let mut single: Vec<_> = tokens
                .iter()
                .map(|(name, _)| json!({ "SpecialToken": { "id": name, "type_id": 0 } }))
                .collect();
            single.push(json!({ "Sequence": { "id": "A", "type_id": 0 } }));
            let special: serde_json::Map<_, _> = tokens
                .iter()
                .map(|&(name, id)| {
                    (name.to_owned(), json!({ "id": name, "ids": [id], "tokens": [name] }))
                })
                .collect();
            content["post_processor"] = json!({
                "type": "TemplateProcessing", "single": single, "pair": single,
                "special_tokens": special,
            });
            write(folder, "tokenizer.json", &content.to_string());
        }
    };
    let file = "`MODEL/tokenizer.json`";
    let count = |tokens| {
        format!("{file} adds {tokens} tokens to a text; only 1 or 2 are supported; {AGAIN}")
    };
    check(adding(&[]), &count(0));
    check(adding(&[("[CLS]", 2), ("[SEP]", 3), ("[PAD]", 0)]), &count(3));
    check(
        adding(&[("[CLS]", 9)]),
        &format!("{file} adds a token with the id 9, but the model has 9 tokens; {AGAIN}"),
    );
    // The library panics here.
    let undefined = |folder: &Path| {
        adding(&[("[CLS]", 2)])(folder);
        let text = fs::read_to_string(folder.join("tokenizer.json")).unwrap();
        write(
            folder,
            "tokenizer.json",
            &text.replace(r#""special_tokens":{"[CLS]""#, r#""special_tokens":{"x""#),
        );
    };
    let folder = model();
    undefined(folder.path());
    assert!(EmbeddingModel::open(folder.path()).is_err());
}

/// Applies `change` to a new model folder, and returns the model's vectors of some texts.
fn vectors(change: impl FnOnce(&Path)) -> Vec<Vec<f32>> {
    let folder = model();
    change(folder.path());
    let model = EmbeddingModel::open(folder.path()).unwrap();
    model.embed(&["Reads a file.", "", "reads reads reads reads reads reads reads", "a"]).unwrap()
}

#[test]
fn all_formats_of_a_model_give_the_same_vectors() {
    let expected = vectors(|_| {});
    for vector in &expected {
        let length = vector.iter().map(|it| it * it).sum::<f32>();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    for (format, prefix) in
        [(NumberFormat::F16, ""), (NumberFormat::Bf16, ""), (NumberFormat::F32, "bert.")]
    {
        let file = weights(format, prefix);
        let same = vectors(|folder| fs::write(folder.join("model.safetensors"), file).unwrap());
        assert_eq!(same, expected);
    }
    let by_words = vectors(|folder| {
        fs::remove_file(folder.join("tokenizer.json")).unwrap();
        write(folder, "vocab.txt", &PIECES.join("\n"));
    });
    assert_eq!(by_words, expected);
    let bare = vectors(|folder| fs::remove_file(folder.join("modules.json")).unwrap());
    assert_eq!(bare, expected);
    let first = vectors(|folder| {
        write(folder, "1_Pooling/config.json", r#"{"pooling_mode_cls_token":true}"#);
    });
    assert_ne!(first, expected);
    let by_tanh = vectors(|folder| {
        let mut config = config();
        config["hidden_act"] = json!("gelu_new");
        write(folder, "config.json", &config.to_string());
    });
    for (a, b) in by_tanh.iter().flatten().zip(expected.iter().flatten()) {
        assert!((a - b).abs() < 0.02, "{a} {b}");
    }
    assert_ne!(by_tanh, expected);
}

#[test]
fn each_model_has_its_own_vector_space() {
    let name = |change: &dyn Fn(&Path)| {
        let folder = model();
        let named = folder.path().join("all-small");
        change(folder.path());
        fs::create_dir(&named).unwrap();
        for name in
            ["config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling"]
        {
            fs::rename(folder.path().join(name), named.join(name)).unwrap();
        }
        EmbeddingModel::open(&named).unwrap().space().model.clone()
    };
    let first = name(&|_| {});
    assert!(first.starts_with("all-small-") && first.len() == "all-small-".len() + 8, "{first}");
    assert_eq!(name(&|_| {}), first);
    let other = name(&|folder| {
        let mut file = weights(NumberFormat::F32, "");
        let last = file.len() - 1;
        file[last] ^= 0x80;
        fs::write(folder.join("model.safetensors"), file).unwrap();
    });
    assert_ne!(other, first);
    let first_token = |folder: &Path| {
        write(folder, "1_Pooling/config.json", r#"{"pooling_mode_cls_token":true}"#);
    };
    assert_ne!(name(&first_token), first);
    for (field, value) in [
        ("hidden_act", json!("relu")),
        ("num_attention_heads", json!(4)),
        ("layer_norm_eps", json!(1e-5)),
    ] {
        let changed = name(&|folder| {
            let mut config = config();
            config[field] = value.clone();
            write(folder, "config.json", &config.to_string());
        });
        assert_ne!(changed, first, "{field}");
    }
}

#[test]
fn a_changed_tokenizer_changes_the_vector_space() {
    let name = |change: &dyn Fn(&mut Value)| {
        let folder = model();
        let mut content = tokenizer();
        change(&mut content);
        write(folder.path(), "tokenizer.json", &content.to_string());
        let looked = CheckedModelFolder::check(folder.path()).unwrap();
        let opened = looked.open().unwrap();
        let space = looked.space().unwrap();
        assert_eq!(opened.space(), &space);
        space.model.rsplit_once('-').unwrap().1.to_owned()
    };
    let first = name(&|_| {});
    assert_ne!(name(&|content| content["normalizer"]["lowercase"] = json!(false)), first);
    let exchanged = |content: &mut Value| {
        let vocab = &mut content["model"]["vocab"];
        (vocab["file"], vocab["read"]) = (vocab["read"].clone(), vocab["file"].clone());
    };
    assert_ne!(name(&exchanged), first);
}

fn special_token(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false,
    })
}

/// Replaces the tokenizer by one without word pieces: a Unigram model, which multilingual models use.
fn use_unigram(folder: &Path) {
    let scores: Vec<_> =
        PIECES.iter().map(|piece| json!([piece.replace("##", ""), -1.0])).collect();
    let content = json!({
        "added_tokens": [special_token(1, "[UNK]"), special_token(3, "[SEP]")],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "Unigram", "unk_id": 1, "vocab": scores },
    });
    write(folder, "tokenizer.json", &content.to_string());
}

#[test]
fn a_model_with_another_kind_of_tokenizer_splits_texts_as_that_kind_does() {
    let folder = model();
    use_unigram(folder.path());
    let unigram = EmbeddingModel::open(folder.path()).unwrap();
    let word_pieces = EmbeddingModel::open(model().path()).unwrap();
    let embed = |model: &EmbeddingModel, text: &str| model.embed(&[text]).unwrap().remove(0);
    assert_eq!(embed(&unigram, "reads file"), embed(&word_pieces, "reads file"));
    // Pieces of a word need no prefix in this kind.
    assert_eq!(embed(&unigram, "readfile"), embed(&word_pieces, "read file"));
    // Its vocabulary contains special tokens, which are left out.
    assert_eq!(embed(&unigram, "file [SEP]"), embed(&word_pieces, "file"));
    assert_eq!(embed(&unigram, "file ?"), embed(&word_pieces, "file ?"), "unknown tokens stay");
}

#[test]
fn names_of_special_tokens_in_a_text_are_words() {
    let folder = model();
    let mut content = tokenizer();
    content["added_tokens"] = json!([special_token(3, "[SEP]")]);
    write(folder.path(), "tokenizer.json", &content.to_string());
    let model = EmbeddingModel::open(folder.path()).unwrap();
    let vectors = model.embed(&["a [SEP] file", "a [unknown] file", "a file"]).unwrap();
    assert_eq!(vectors[0], vectors[1]);
    assert_ne!(vectors[0], vectors[2]);
}

#[test]
fn a_text_is_truncated_at_the_limit_of_the_model_and_prompts_are_prepended() {
    let folder = model();
    let prompts = json!({ "prompts": { "query": "query: ", "passage": "passage: " } });
    write(folder.path(), "config_sentence_transformers.json", &prompts.to_string());
    let model = EmbeddingModel::open(folder.path()).unwrap();
    assert_eq!((model.query_prompt(), model.passage_prompt()), ("query: ", "passage: "));
    assert_eq!(model.tokens_max(), 12);
    let ten = "a ".repeat(10);
    let vectors = model.embed(&[&ten, &format!("{ten}file file"), "a"]).unwrap();
    assert_eq!(vectors[0], vectors[1]);
    assert_ne!(vectors[0], vectors[2]);
    let short = model.with_tokens_max(3);
    let vectors = short.embed(&[&ten, "a"]).unwrap();
    assert_eq!(vectors[0], vectors[1]);
    assert!(short.embed(&[]).unwrap().is_empty());
}
