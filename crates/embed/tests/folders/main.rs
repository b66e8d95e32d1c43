//! Folders as they should not be, each named in a sentence; and all the ways in which they may be.
#![allow(clippy::disallowed_methods, reason = "a test sets up the folder itself")]
#![allow(clippy::unwrap_used, reason = "what a test expects and does not find fails it")]

mod model;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use toolgate_embed::{EmbeddingModel, ModelFolder};

use model::{As, PIECES, config, model, tokenizer, weights, write};

/// What is said of a model after `change`.
#[track_caller]
fn check(change: impl FnOnce(&Path), expected: &str) {
    let folder = model();
    change(folder.path());
    let why = EmbeddingModel::open(folder.path()).expect_err("it is a model").to_string();
    let shown = folder.path().display().to_string();
    assert_eq!(why.replace(&shown, "MODEL"), expected);
}

const AGAIN: &str = "copy the model's folder again, whole";
const ANOTHER: &str =
    "use a sentence-transformers model of the BERT family, such as all-MiniLM-L6-v2";

#[test]
fn a_folder_that_is_not_there_or_lacks_a_file_is_no_model() {
    let missing =
        "there is no such file; name a folder that holds a whole sentence-transformers model";
    check(
        |folder| fs::remove_dir_all(folder).unwrap(),
        "there is no folder `MODEL`; name one that holds a sentence-transformers model of the BERT \
         family (`config.json`, `model.safetensors`, `tokenizer.json`)",
    );
    for name in ["config.json", "model.safetensors", "1_Pooling/config.json"] {
        let expected = format!("`MODEL/{name}` cannot be read: {missing}");
        check(|folder| fs::remove_file(folder.join(name)).unwrap(), &expected);
    }
    check(
        |folder| fs::remove_file(folder.join("tokenizer.json")).unwrap(),
        &format!("`MODEL/tokenizer.json` is not there, and neither is `vocab.txt`; {AGAIN}"),
    );
}

#[test]
fn another_architecture_is_refused() {
    let with = |name: &'static str, value: Value| {
        move |folder: &Path| {
            let mut config = config();
            config[name] = value;
            write(folder, "config.json", &config.to_string());
        }
    };
    check(
        with("model_type", json!("roberta")),
        &format!(
            "`MODEL/config.json` says that the model is of the type `roberta`, not `bert`; {ANOTHER}"
        ),
    );
    check(
        with("hidden_act", json!("swiglu")),
        &format!(
            "`MODEL/config.json` has the `hidden_act` `swiglu`, which is not known here; {ANOTHER}"
        ),
    );
    check(
        with("num_attention_heads", json!(3)),
        &format!(
            "`MODEL/config.json` has 3 heads, which do not divide a `hidden_size` of 8; {AGAIN}"
        ),
    );
    check(
        with("hidden_size", json!(0)),
        &format!(
            "`MODEL/config.json` says `hidden_size` is 0, where 1 to 16384 make sense; {AGAIN}"
        ),
    );
    check(
        |folder| write(folder, "1_Pooling/config.json", r#"{"pooling_mode_max_tokens":true}"#),
        &format!(
            "`MODEL/1_Pooling/config.json` asks for another pooling than the mean or the first token; {ANOTHER}"
        ),
    );
    check(
        |folder| write(folder, "modules.json", r#"[{"path":"2_Dense","type":"x.Dense"}]"#),
        &format!(
            "`MODEL/modules.json` has a module `x.Dense` at `2_Dense`, where only a Transformer, \
             Pooling and Normalize are known here; {ANOTHER}"
        ),
    );
}

#[test]
fn weights_that_are_cut_or_do_not_fit_are_refused() {
    let whole = weights(As::F32, "");
    let cut = |bytes: usize| {
        let kept = whole[..bytes].to_vec();
        move |folder: &Path| fs::write(folder.join("model.safetensors"), kept).unwrap()
    };
    let file = "`MODEL/model.safetensors`";
    check(cut(0), &format!("{file} is cut: it has only 0 bytes; {AGAIN}"));
    let head = u64::from_le_bytes(whole[..8].try_into().unwrap());
    let expected = format!(
        "{file} is no safetensors file, or cut: its head would have {head} bytes of 20; {AGAIN}"
    );
    check(cut(20), &expected);
    let short = whole.len() - 1;
    let folder = model();
    cut(short)(folder.path());
    let why = EmbeddingModel::open(folder.path()).expect_err("it is cut").to_string();
    let part = format!("is cut: it has {short} bytes, and `");
    assert!(why.contains(&part) && why.contains(&format!("ends at {}", whole.len())), "{why}");
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
        &format!("{file} holds no tensor `encoder.layer.1.attention.self.query.weight`; {ANOTHER}"),
    );
    let mut broken = whole.clone();
    let last = broken.len() - 4;
    broken[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let folder = model();
    fs::write(folder.path().join("model.safetensors"), broken).unwrap();
    let why = EmbeddingModel::open(folder.path()).expect_err("it has a NaN").to_string();
    assert!(why.contains("holds what is no number"), "{why}");
}

#[test]
fn a_tokenizer_that_is_broken_or_of_another_kind_is_refused() {
    let with = |change: fn(&mut Value)| {
        move |folder: &Path| {
            let mut said = tokenizer();
            change(&mut said);
            write(folder, "tokenizer.json", &said.to_string());
        }
    };
    let file = "`MODEL/tokenizer.json`";
    check(
        |folder| write(folder, "tokenizer.json", "{\"model\":"),
        &format!(
            "{file} does not hold what it should: EOF while parsing a value at line 1 column 9; {AGAIN}"
        ),
    );
    check(
        with(|said| said["model"]["type"] = json!("BPE")),
        &format!(
            "{file} has a model of the type `BPE`, where only `WordPiece` is known here; {ANOTHER}"
        ),
    );
    check(
        with(|said| drop(said["model"]["vocab"].as_object_mut().unwrap().remove("[SEP]"))),
        &format!("{file} has no piece `[SEP]`; {AGAIN}"),
    );
    check(
        with(|said| said["model"]["vocab"]["a"] = json!(9)),
        &format!("{file} gives `a` the number 9, and the model knows 9; {AGAIN}"),
    );
}

/// The vectors of some texts by a model after `change`.
fn vectors(change: impl FnOnce(&Path)) -> Vec<Vec<f32>> {
    let folder = model();
    change(folder.path());
    let model = EmbeddingModel::open(folder.path()).unwrap();
    model.embed(&["Reads a file.", "", "reads reads reads reads reads reads reads", "a"]).unwrap()
}

#[test]
fn all_the_formats_of_a_model_give_the_same_vectors() {
    let expected = vectors(|_| {});
    for vector in &expected {
        let length = vector.iter().map(|it| it * it).sum::<f32>();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    for (numbers, prefix) in [(As::F16, ""), (As::Bf16, ""), (As::F32, "bert.")] {
        let file = weights(numbers, prefix);
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
fn a_space_is_of_its_model_alone() {
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
        let mut file = weights(As::F32, "");
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
fn a_corrected_tokenizer_makes_another_space() {
    let name = |change: &dyn Fn(&mut Value)| {
        let folder = model();
        let mut said = tokenizer();
        change(&mut said);
        write(folder.path(), "tokenizer.json", &said.to_string());
        let looked = ModelFolder::check(folder.path()).unwrap();
        let opened = looked.open().unwrap();
        let space = looked.space().unwrap();
        assert_eq!(opened.space(), &space);
        space.model.rsplit_once('-').unwrap().1.to_owned()
    };
    let first = name(&|_| {});
    assert_eq!(name(&|said| said["padding"] = json!({ "length": 128 })), first);
    assert_ne!(name(&|said| said["normalizer"]["lowercase"] = json!(false)), first);
    let exchanged = |said: &mut Value| {
        let vocab = &mut said["model"]["vocab"];
        (vocab["file"], vocab["read"]) = (vocab["read"].clone(), vocab["file"].clone());
    };
    assert_ne!(name(&exchanged), first);
}

#[test]
fn a_text_is_read_as_far_as_the_model_reads_and_prompts_are_said() {
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
