//! Errors in a model's folder. Each names the file and suggests a fix.

use std::path::{Path, PathBuf};

/// Reason that a folder is not a usable model.
#[derive(Debug, thiserror::Error)]
pub enum ModelFolderError {
    /// The folder of the model does not exist.
    #[error(
        "the folder `{}` does not exist; name one with a sentence-transformers model of the BERT \
         family (`config.json`, `model.safetensors`, `tokenizer.json`)", .0.display()
    )]
    FolderMissing(PathBuf),
    /// A file of the model is missing or unreadable.
    #[error("`{}` cannot be read: {why}; {way_out}", file.display())]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Error from the operating system.
        why: String,
        /// Suggested fix, for the error message.
        way_out: &'static str,
    },
    /// A file of the model has wrong or unsupported content.
    #[error("`{}` {what}; {way_out}", file.display())]
    Invalid {
        /// Path of the file.
        file: PathBuf,
        /// Problem with the content of the file.
        what: String,
        /// Suggested fix, for the error message.
        way_out: &'static str,
    },
}

/// Suggested fix for a damaged file.
pub(crate) const COPY_AGAIN: &str = "copy the whole model folder again";
/// Suggested fix for an unsupported model.
pub(crate) const ANOTHER_MODEL: &str =
    "use a sentence-transformers model of the BERT family, such as all-MiniLM-L6-v2";

impl ModelFolderError {
    pub(crate) fn unreadable(file: &Path, why: &std::io::Error) -> Self {
        let (why, way_out) = match why.kind() {
            std::io::ErrorKind::NotFound => {
                let why = "the file is missing".to_owned();
                (why, "name a folder with a complete sentence-transformers model")
            }
            _ => (why.to_string(), COPY_AGAIN),
        };
        Self::Unreadable { file: file.to_owned(), why, way_out }
    }

    pub(crate) fn damaged(file: &Path, what: impl Into<String>) -> Self {
        Self::Invalid { file: file.to_owned(), what: what.into(), way_out: COPY_AGAIN }
    }

    pub(crate) fn unsupported(file: &Path, what: impl Into<String>) -> Self {
        Self::Invalid { file: file.to_owned(), what: what.into(), way_out: ANOTHER_MODEL }
    }
}
