//! A small model with all files of a model folder. The tests change these files.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

const HIDDEN: usize = 8;
const WIDE: usize = 16;
pub(crate) const PIECES: [&str; 9] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "read", "##s", "file", "a", "."];

/// Number format of the weights of a model.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum NumberFormat {
    F32,
    F16,
    Bf16,
}

/// Creates a model of one layer. Its weights are exact in every number format.
pub(crate) fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, value: Value| write(folder.path(), name, &value.to_string());
    put("config.json", config());
    put("tokenizer.json", tokenizer());
    put(
        "modules.json",
        json!([
            { "path": "", "type": "sentence_transformers.models.Transformer" },
            { "path": "1_Pooling", "type": "sentence_transformers.models.Pooling" },
            { "path": "2_Normalize", "type": "sentence_transformers.models.Normalize" },
        ]),
    );
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    put("1_Pooling/config.json", json!({ "pooling_mode_mean_tokens": true }));
    fs::write(folder.path().join("model.safetensors"), weights(NumberFormat::F32, "")).unwrap();
    folder
}

pub(crate) fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
}

pub(crate) fn config() -> Value {
    json!({
        "model_type": "bert", "vocab_size": PIECES.len(), "hidden_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": WIDE,
        "max_position_embeddings": 12, "type_vocab_size": 2, "hidden_act": "gelu",
    })
}

pub(crate) fn tokenizer() -> Value {
    let vocab: Map<_, _> =
        PIECES.iter().zip(0..).map(|(it, at)| ((*it).to_owned(), json!(at))).collect();
    json!({
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                        "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": vocab },
    })
}

pub(crate) fn weights(format: NumberFormat, prefix: &str) -> Vec<u8> {
    let embeddings = [("word", PIECES.len()), ("position", 12), ("token_type", 2)];
    let mut tensors: Vec<(String, Vec<usize>)> = embeddings
        .map(|(name, rows)| (format!("embeddings.{name}_embeddings.weight"), vec![rows, HIDDEN]))
        .into();
    let layer = "encoder.layer.0";
    for (name, out, of) in [
        ("attention.self.query", HIDDEN, HIDDEN),
        ("attention.self.key", HIDDEN, HIDDEN),
        ("attention.self.value", HIDDEN, HIDDEN),
        ("attention.output.dense", HIDDEN, HIDDEN),
        ("intermediate.dense", WIDE, HIDDEN),
        ("output.dense", HIDDEN, WIDE),
    ] {
        tensors.push((format!("{layer}.{name}.weight"), vec![out, of]));
        tensors.push((format!("{layer}.{name}.bias"), vec![out]));
    }
    let norms = ["embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"];
    for name in norms {
        tensors.push((format!("{name}.LayerNorm.weight"), vec![HIDDEN]));
        tensors.push((format!("{name}.LayerNorm.bias"), vec![HIDDEN]));
    }
    let mut head = Map::new();
    let mut body = Vec::new();
    let mut state = 1u32;
    for (name, shape) in tensors {
        let begin = body.len();
        for _ in 0..shape.iter().product() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Eighths between -2 and 2: few bits, so that all formats are equal.
            let number = f32::from(u8::try_from(state >> 27).unwrap()) / 8.0 - 2.0;
            let bits = number.to_bits();
            match format {
                NumberFormat::F32 => body.extend(number.to_le_bytes()),
                NumberFormat::Bf16 => body.extend(&bits.to_le_bytes()[2..]),
                NumberFormat::F16 if number == 0.0 => body.extend([0, 0]),
                NumberFormat::F16 => {
                    let exponent = ((bits >> 23) & 0xff) + 15 - 127;
                    let half = (bits >> 31) << 15 | exponent << 10 | (bits >> 13) & 0x3ff;
                    body.extend(&half.to_le_bytes()[..2]);
                }
            }
        }
        let kind = match format {
            NumberFormat::F32 => "F32",
            NumberFormat::F16 => "F16",
            NumberFormat::Bf16 => "BF16",
        };
        let entry = json!({ "dtype": kind, "shape": shape, "data_offsets": [begin, body.len()] });
        head.insert(format!("{prefix}{name}"), entry);
    }
    let head = Value::Object(head).to_string();
    let mut file = (head.len() as u64).to_le_bytes().to_vec();
    file.extend(head.as_bytes());
    file.extend(body);
    file
}
