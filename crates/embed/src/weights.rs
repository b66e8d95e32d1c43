//! Reads the weights of a model from a safetensors file, one tensor at a time.

#![allow(
    clippy::disallowed_methods,
    reason = "a model's folder is named by the owner, and read once"
)]

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelFolderError;

/// Longest head of a file of weights, in bytes. The largest models of this family have a head of
/// 100 kB.
const HEAD_BYTES_MAX: u64 = 16 << 20;

/// An open file with the weights of a model.
pub(crate) struct ModelWeights {
    path: PathBuf,
    file: File,
    tensors: HashMap<String, TensorEntry>,
    /// Byte position in the weights file at which the tensors begin.
    data_start: u64,
    /// Prefix of the names of all tensors in the file.
    prefix: &'static str,
}

/// Entry of a tensor in the header of a weights file.
#[derive(Deserialize)]
struct TensorEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl ModelWeights {
    /// Opens the file of weights at `path` and parses its head. Fails if the file is missing or
    /// damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelFolderError> {
        let unreadable = |err| ModelFolderError::unreadable(path, &err);
        let damaged = |what: String| ModelFolderError::damaged(path, what);
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; 8];
        if file.read_exact_at(&mut length, 0).is_err() {
            return Err(damaged(format!("is truncated: it has only {bytes} bytes")));
        }
        let length = u64::from_le_bytes(length);
        if length > HEAD_BYTES_MAX || length + 8 > bytes {
            return Err(damaged(format!(
                "is not a safetensors file, or is truncated: its header would have {length} of {bytes} bytes"
            )));
        }
        let mut head = vec![0; usize::try_from(length).unwrap_or_default()];
        file.read_exact_at(&mut head, 8).map_err(unreadable)?;
        let head: HashMap<String, Value> = serde_json::from_slice(&head)
            .map_err(|err| damaged(format!("has a broken header: {err}")))?;
        let begin = length + 8;
        let mut tensors = HashMap::new();
        for (name, entry) in head {
            if name == "__metadata__" {
                continue;
            }
            let tensor: TensorEntry = serde_json::from_value(entry)
                .map_err(|err| damaged(format!("has a broken header, at `{name}`: {err}")))?;
            let (from, until) = tensor.data_offsets;
            if from > until || until > bytes - begin {
                let wanted = begin.saturating_add(until);
                return Err(damaged(format!(
                    "is truncated: it has {bytes} bytes, but `{name}` ends at {wanted}"
                )));
            }
            tensors.insert(name, tensor);
        }
        let has = |name: &str| tensors.contains_key(name);
        let prefix = if has("bert.embeddings.word_embeddings.weight") { "bert." } else { "" };
        Ok(Self { path: path.to_owned(), file, tensors, data_start: begin, prefix })
    }

    /// Returns a hash of the complete file of weights. Fails if the file cannot be read.
    pub(crate) fn hash(&self) -> Result<blake3::Hash, ModelFolderError> {
        let unreadable = |err| ModelFolderError::unreadable(&self.path, &err);
        let mut file = File::open(&self.path).map_err(unreadable)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(unreadable)? {
                0 => return Ok(hasher.finalize()),
                read => hasher.update(&buffer[..read]),
            };
        }
    }

    /// Reads the tensor `name` from the file of weights. Fails if the tensor is missing, has
    /// another shape than `shape`, or contains a number that is not finite.
    pub(crate) fn read_tensor(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Vec<f32>, ModelFolderError> {
        let name = format!("{}{name}", self.prefix);
        let damaged = |what: String| ModelFolderError::damaged(&self.path, what);
        let Some(tensor) = self.tensors.get(&name) else {
            return Err(ModelFolderError::unsupported(
                &self.path,
                format!("has no tensor `{name}`"),
            ));
        };
        if tensor.shape != shape {
            return Err(damaged(format!(
                "does not fit its `config.json`: `{name}` has the shape {:?}, not {shape:?}",
                tensor.shape
            )));
        }
        let width = match tensor.dtype.as_str() {
            "F32" => 4,
            "F16" | "BF16" => 2,
            other => {
                let what = format!("has `{name}` as {other}; only F32, F16 and BF16 are supported");
                return Err(ModelFolderError::unsupported(&self.path, what));
            }
        };
        let (from, until) = tensor.data_offsets;
        let count: usize = shape.iter().product();
        if until - from != (count * width) as u64 {
            return Err(damaged(format!(
                "is broken: `{name}` of the shape {shape:?} has {} bytes",
                until - from
            )));
        }
        let mut bytes = vec![0; count * width];
        self.file
            .read_exact_at(&mut bytes, self.data_start + from)
            .map_err(|err| ModelFolderError::unreadable(&self.path, &err))?;
        let numbers: Vec<f32> = match tensor.dtype.as_str() {
            "F32" => {
                let (words, _) = bytes.as_chunks();
                words.iter().map(|word| f32::from_le_bytes(*word)).collect()
            }
            "F16" => half_words(&bytes).map(from_half).collect(),
            _ => half_words(&bytes).map(|half| f32::from_bits(u32::from(half) << 16)).collect(),
        };
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(damaged(format!("is broken: `{name}` contains an invalid number")));
        }
        Ok(numbers)
    }
}

fn half_words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    let (halves, _) = bytes.as_chunks();
    halves.iter().map(|half| u16::from_le_bytes(*half))
}

/// Converts an IEEE 754 half-precision number.
fn from_half(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 0x1f;
    let fraction = u32::from(half) & 0x3ff;
    let bits = match exponent {
        // A subnormal number is an exact multiple of 2^-24.
        0 => (fraction as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        0x1f => (0xff << 23) | (fraction << 13),
        _ => ((exponent + 127 - 15) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | bits)
}
