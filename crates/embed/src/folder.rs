//! Reads the settings files in a model's folder, before the weights are loaded.

#![allow(
    clippy::disallowed_methods,
    reason = "a model's folder is named by the owner, and read once"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ModelFolderError;

/// Maximum size of a settings file, in bytes. The files of the largest models have some kilobytes.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a tokenizer file, in bytes. The file of a multilingual model has 17 MB.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// Dimensions and options of the network, from `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ModelDimensions {
    #[serde(default)]
    pub(crate) model_type: String,
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) max_position_embeddings: usize,
    #[serde(default = "two")]
    pub(crate) type_vocab_size: usize,
    #[serde(default = "layer_norm_eps")]
    pub(crate) layer_norm_eps: f32,
    #[serde(default = "gelu")]
    hidden_act: String,
    #[serde(default = "absolute")]
    position_embedding_type: String,
}

fn two() -> usize {
    2
}

fn layer_norm_eps() -> f32 {
    1e-12
}

fn gelu() -> String {
    "gelu".to_owned()
}

fn absolute() -> String {
    "absolute".to_owned()
}

/// Activation function between two linear layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActivationFunction {
    Gelu,
    GeluTanh,
    Relu,
}

/// Method that combines the vectors of the tokens into one vector for the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolingMethod {
    Mean,
    FirstToken,
}

/// A model's folder with its parsed settings.
#[derive(Debug)]
pub(crate) struct ParsedModelFolder {
    pub(crate) path: PathBuf,
    pub(crate) shape: ModelDimensions,
    pub(crate) activation: ActivationFunction,
    pub(crate) pooling: PoolingMethod,
    /// Maximum number of tokens that the model reads, including the start and end tokens.
    pub(crate) tokens_max: usize,
    /// Prefixes that the model expects before a text, by the purpose of the text.
    pub(crate) prompts: BTreeMap<String, String>,
}

impl ParsedModelFolder {
    pub(crate) fn read(path: &Path) -> Result<Self, ModelFolderError> {
        if !fs::metadata(path).is_ok_and(|found| found.is_dir()) {
            return Err(ModelFolderError::FolderMissing(path.to_owned()));
        }
        let (shape, bend) = read_shape(&path.join("config.json"))?;
        let pooling = read_pooling(path)?;
        let tokens_max = read_tokens_max(path, shape.max_position_embeddings)?;
        let prompts_file: Option<ModelPromptsFile> =
            read_optional_json(&path.join("config_sentence_transformers.json"))?;
        let prompts = prompts_file.unwrap_or_default().prompts;
        Ok(Self { path: path.to_owned(), shape, activation: bend, pooling, tokens_max, prompts })
    }

    /// Returns the name of the model's folder. For a folder with a generic name such as `model`,
    /// returns the name of a parent folder.
    pub(crate) fn name(&self) -> String {
        // A path such as `.` has a name only after it is resolved.
        let whole = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let names: Vec<_> = whole.iter().rev().map(|name| name.to_string_lossy()).collect();
        // A folder with a generic name is named after its parent.
        let named = names.iter().find(|name| !["model", "onnx", "snapshot"].contains(&&***name));
        named.map_or_else(|| "model".to_owned(), ToString::to_string)
    }
}

/// Prompts of a sentence model in `config_sentence_transformers.json`.
#[derive(Deserialize, Default)]
struct ModelPromptsFile {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
}

fn read_shape(file: &Path) -> Result<(ModelDimensions, ActivationFunction), ModelFolderError> {
    /// The field of `config.json` that names the type of the model.
    #[derive(Deserialize)]
    struct ModelTypeConfig {
        #[serde(default)]
        model_type: Option<String>,
    }
    let ModelTypeConfig { model_type } = read_json(file)?;
    let model_type = model_type.unwrap_or_default();
    if model_type != "bert" {
        let what = if model_type.is_empty() {
            "has no `model_type`".to_owned()
        } else {
            format!("has the `model_type` `{model_type}`, not `bert`")
        };
        return Err(ModelFolderError::unsupported(file, what));
    }
    let shape: ModelDimensions = read_json(file)?;
    debug_assert_eq!(shape.model_type, "bert");
    let bend = match shape.hidden_act.as_str() {
        "gelu" | "gelu_python" => ActivationFunction::Gelu,
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => ActivationFunction::GeluTanh,
        "relu" => ActivationFunction::Relu,
        other => {
            let what = format!("has the unsupported `hidden_act` `{other}`");
            return Err(ModelFolderError::unsupported(file, what));
        }
    };
    if shape.position_embedding_type != "absolute" {
        let what = format!(
            "has positions of the type `{}`; only `absolute` ones are supported",
            shape.position_embedding_type
        );
        return Err(ModelFolderError::unsupported(file, what));
    }
    let counts = [
        ("vocab_size", shape.vocab_size, 1 << 22),
        ("hidden_size", shape.hidden_size, 1 << 14),
        ("num_hidden_layers", shape.num_hidden_layers, 256),
        ("num_attention_heads", shape.num_attention_heads, 1 << 10),
        ("intermediate_size", shape.intermediate_size, 1 << 16),
        ("max_position_embeddings", shape.max_position_embeddings, 1 << 20),
        ("type_vocab_size", shape.type_vocab_size, 1 << 10),
    ];
    for (name, count, most) in counts {
        if count == 0 || count > most {
            let what = format!("has `{name}` {count}; it must be 1 to {most}");
            return Err(ModelFolderError::damaged(file, what));
        }
    }
    if shape.max_position_embeddings < 3 {
        return Err(ModelFolderError::damaged(
            file,
            "leaves no room for a token between the two special tokens",
        ));
    }
    if !shape.hidden_size.is_multiple_of(shape.num_attention_heads) {
        let what = format!(
            "has {} heads, which do not divide a `hidden_size` of {}",
            shape.num_attention_heads, shape.hidden_size
        );
        return Err(ModelFolderError::damaged(file, what));
    }
    Ok((shape, bend))
}

/// Returns the pooling method from `modules.json` and the file that it names, or the mean if
/// `modules.json` is missing. Fails if a file is invalid, or the method is not supported.
fn read_pooling(folder: &Path) -> Result<PoolingMethod, ModelFolderError> {
    /// Entry of `modules.json`: one module of a sentence model.
    #[derive(Deserialize)]
    struct ModelModuleEntry {
        path: String,
        r#type: String,
    }
    /// Configuration of the pooling module of a sentence model.
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct PoolingConfig {
        pooling_mode: Option<String>,
        pooling_mode_cls_token: bool,
        pooling_mode_mean_tokens: bool,
        pooling_mode_max_tokens: bool,
        pooling_mode_mean_sqrt_len_tokens: bool,
        pooling_mode_weightedmean_tokens: bool,
        pooling_mode_lasttoken: bool,
    }
    let list = folder.join("modules.json");
    let Some(modules) = read_optional_json::<Vec<ModelModuleEntry>>(&list)? else {
        // The default of sentence-transformers for a folder with a bare BERT.
        return Ok(PoolingMethod::Mean);
    };
    let mut found = PoolingMethod::Mean;
    for module in modules {
        let kind = module.r#type.rsplit('.').next().unwrap_or_default();
        match kind {
            "Transformer" if module.path.is_empty() => {}
            // Every vector is normalized, even if the model does not ask for it.
            "Normalize" => {}
            "Pooling" => {
                let file = folder.join(&module.path).join("config.json");
                let modes: PoolingConfig = read_json(&file)?;
                let others = modes.pooling_mode_max_tokens
                    || modes.pooling_mode_mean_sqrt_len_tokens
                    || modes.pooling_mode_weightedmean_tokens
                    || modes.pooling_mode_lasttoken;
                let named = modes.pooling_mode.as_deref();
                let cls = modes.pooling_mode_cls_token;
                let mean = modes.pooling_mode_mean_tokens;
                found = match (named, cls, mean, others) {
                    (Some("mean"), _, _, false) | (None, false, true, false) => PoolingMethod::Mean,
                    (Some("cls"), _, _, false) | (None, true, false, false) => {
                        PoolingMethod::FirstToken
                    }
                    _ => {
                        let what = "has an unsupported pooling; only the mean and the first token are supported";
                        return Err(ModelFolderError::unsupported(&file, what));
                    }
                };
            }
            _ => {
                let what = format!("has a module `{}` at `{}`", module.r#type, module.path);
                let what = format!("{what}; only Transformer, Pooling and Normalize are supported");
                return Err(ModelFolderError::unsupported(&list, what));
            }
        }
    }
    Ok(found)
}

fn read_tokens_max(folder: &Path, positions: usize) -> Result<usize, ModelFolderError> {
    /// Longest text that a model reads, in `sentence_bert_config.json`.
    #[derive(Deserialize)]
    struct SentenceLengthConfig {
        max_seq_length: Option<usize>,
    }
    let file = folder.join("sentence_bert_config.json");
    let config =
        read_optional_json::<SentenceLengthConfig>(&file)?.and_then(|config| config.max_seq_length);
    match config {
        Some(tokens) if tokens < 3 => {
            let what = format!("has `max_seq_length` {tokens}, which leaves no room for a text");
            Err(ModelFolderError::damaged(&file, what))
        }
        Some(tokens) => Ok(tokens.min(positions)),
        None => Ok(positions),
    }
}

/// Parses the JSON in `file`. Fails if the file is missing, larger than 1 MiB or invalid.
pub(crate) fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T, ModelFolderError> {
    let text = read_limited(file, SETTINGS_BYTES_MAX)?;
    serde_json::from_slice(&text).map_err(|err| invalid_json(file, &err))
}

/// Parses the JSON in `file`, or returns `None` if the file does not exist. Fails if the file is
/// larger than 1 MiB or invalid.
pub(crate) fn read_optional_json<T: DeserializeOwned>(
    file: &Path,
) -> Result<Option<T>, ModelFolderError> {
    match fs::metadata(file) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(_) | Err(_) => read_json(file).map(Some),
    }
}

/// Reads a tokenizer's `file`, or returns `None` if it does not exist. Fails if the file is
/// unreadable or larger than 64 MiB.
pub(crate) fn read_tokenizer_file(file: &Path) -> Result<Option<Vec<u8>>, ModelFolderError> {
    match fs::metadata(file) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(_) | Err(_) => read_limited(file, TOKENIZER_BYTES_MAX).map(Some),
    }
}

pub(crate) fn invalid_json(file: &Path, err: &serde_json::Error) -> ModelFolderError {
    ModelFolderError::damaged(file, format!("has invalid content: {err}"))
}

fn read_limited(file: &Path, bytes_max: u64) -> Result<Vec<u8>, ModelFolderError> {
    let found = fs::metadata(file).map_err(|err| ModelFolderError::unreadable(file, &err))?;
    if found.len() > bytes_max {
        let what = format!("has {} bytes; the limit is {bytes_max}", found.len());
        return Err(ModelFolderError::damaged(file, what));
    }
    fs::read(file).map_err(|err| ModelFolderError::unreadable(file, &err))
}
