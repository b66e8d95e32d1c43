//! What can be wrong with a model's folder, in sentences that name the file and the way out.

use std::path::{Path, PathBuf};

/// Why a folder is no model that can be used here.
#[derive(Debug, thiserror::Error)]
pub enum NotAModel {
    /// There is no folder.
    #[error(
        "there is no folder `{}`; name one that holds a sentence-transformers model of the BERT \
         family (`config.json`, `model.safetensors`, `tokenizer.json`)", .0.display()
    )]
    NoFolder(PathBuf),
    /// A file is missing or cannot be read.
    #[error("`{}` cannot be read: {why}; {way_out}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        why: String,
        /// What to do.
        way_out: &'static str,
    },
    /// A file does not hold what it should.
    #[error("`{}` {what}; {way_out}", file.display())]
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What to do.
        way_out: &'static str,
    },
}

/// What to do about a file that is damaged.
pub(crate) const COPY_AGAIN: &str = "copy the model's folder again, whole";
/// What to do about a model that is not understood here.
pub(crate) const ANOTHER_MODEL: &str =
    "use a sentence-transformers model of the BERT family, such as all-MiniLM-L6-v2";

impl NotAModel {
    pub(crate) fn unreadable(file: &Path, why: &std::io::Error) -> Self {
        let (why, way_out) = match why.kind() {
            std::io::ErrorKind::NotFound => {
                let why = "there is no such file".to_owned();
                (why, "name a folder that holds a whole sentence-transformers model")
            }
            _ => (why.to_string(), COPY_AGAIN),
        };
        Self::Unreadable { file: file.to_owned(), why, way_out }
    }

    pub(crate) fn damaged(file: &Path, what: impl Into<String>) -> Self {
        Self::Broken { file: file.to_owned(), what: what.into(), way_out: COPY_AGAIN }
    }

    pub(crate) fn unsupported(file: &Path, what: impl Into<String>) -> Self {
        Self::Broken { file: file.to_owned(), what: what.into(), way_out: ANOTHER_MODEL }
    }
}
