//! Where the chunks and vectors of one namespace are kept, and found again.
//!
//! An engine knows documents, not files: the [service](super) says what is in it and when it has
//! changed. It is asked from many tasks at once.

pub mod embedded;
pub mod settings;
mod kept;
pub mod postgres;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolgate_chunks::Chunk;
use toolgate_search::rank::{Averages, Candidate, Question};
use toolgate_search::{ChunkHash, Document, Filter};

pub use toolgate_search::index::{Begun, Leader, Named};

/// What an engine does. Dropping it ends what can be ended; nothing is left half done by that.
pub type Doing<'e, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'e>>;

/// Why an engine did not do it. Its words are for whoever called: lower-case, naming what is away,
/// broken or wrong and the way out; never a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It cannot be reached now; later it may be.
    #[error("{0}")]
    Away(String),
    /// What it keeps is broken, and is to be [reset](Engine::reset) and written anew.
    #[error("{0}")]
    Damaged(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// Keeps the chunks and vectors of one namespace.
pub trait Engine: Send + Sync {
    /// The name of the engine in settings and status: `embedded` or `postgres`.
    fn name(&self) -> &'static str;

    /// Makes it ready: opens, connects, creates, migrates. Called before anything else, and again
    /// after [`EngineError::Away`]; cheap where there is nothing to do.
    fn open(&self) -> Doing<'_, Begun>;

    /// The right to write, until it is dropped; `None` while another process has it. What is held
    /// by a process that died is free soon.
    fn writer(&self) -> Doing<'_, Option<Box<dyn Writer>>>;

    /// What is in it, as last committed, by path.
    fn documents(&self) -> Doing<'_, BTreeMap<String, Known>>;

    /// How much is in it, as last committed.
    fn status(&self) -> Doing<'_, Status>;

    /// What may be meant, as last committed: the best by words, by static and by model vectors.
    fn candidates(&self, sought: Sought) -> Doing<'_, Matched>;

    /// Definitions called like `name`, the likeliest first: the very name, another case, names that
    /// begin so, with the same words, misspelt; functions and types before others.
    fn named(&self, name: String, filter: Filter, limit: usize) -> Doing<'_, Vec<Named>>;

    /// Up to `most` chunks that have no vector by the model yet, those of the newest documents
    /// first where that is known.
    fn unembedded(&self, most: usize) -> Doing<'_, Vec<Unembedded>>;

    /// The document at `path` as it was put, where engines keep it: in namespaces of
    /// [`Source::Documents`], which no file holds. `None` where there is none.
    fn kept(&self, path: String) -> Doing<'_, Option<Put>>;

    /// Who has the right to write, where this engine knows.
    fn leader(&self) -> Doing<'_, Option<Leader>> {
        Box::pin(async { Ok(None) })
    }

    /// Throws away all of this namespace that can be made again from files: it begins empty. What
    /// [`Engine::kept`] tells is not thrown away but put again.
    fn reset(&self) -> Doing<'_, ()>;
}

/// The right to write into an engine. What is put, removed and given is found once it is committed.
pub trait Writer: Send {
    /// Takes in `documents`, each in place of what its path had. One that cannot be taken in keeps
    /// out no other: [`Writer::refused`] tells of it.
    fn put(&mut self, documents: Vec<Put>) -> Doing<'_, ()>;

    /// What was put since this was asked last and cannot be taken in, each with why.
    fn refused(&mut self) -> Vec<(Put, String)> {
        Vec::new()
    }

    /// Takes out the documents at `paths`; one that is not there is no failure.
    fn remove(&mut self, paths: Vec<String>) -> Doing<'_, ()>;

    /// Makes durable and visible all that was done since the last time. Where it fails, none of it
    /// is.
    fn commit(&mut self) -> Doing<'_, ()>;

    /// Takes in vectors by the model, each of length 1 and of the space that the engine was opened
    /// with, for every chunk that says this. One of another length, or with numbers that are not
    /// finite, is [`EngineError::Failed`].
    fn give(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> Doing<'_, ()>;

    /// Tells other servers whether all is in it, and from then on that this one lives.
    fn tell(&mut self, complete: bool) -> Doing<'_, ()> {
        let _ = complete;
        Box::pin(async { Ok(()) })
    }

    /// Nothing is to come for a while: what is held only to be quick is let go.
    fn rest(&mut self) -> Doing<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// What a namespace is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Files of a folder: texts are read from there.
    Files,
    /// JSON documents that callers put: the engine keeps their texts.
    Documents,
}

/// Which namespace an engine is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The folder whose files are in it; of documents the workspace they belong to. All symlinks
    /// resolved.
    pub root: PathBuf,
    /// What it is called.
    pub namespace: String,
    /// What it is of.
    pub source: Source,
}

/// A [`Document`] that is owned.
#[derive(Debug, Clone, PartialEq)]
pub struct Put {
    /// See [`Document::path`].
    pub path: String,
    /// See [`Document::stamp`].
    pub stamp: Vec<u8>,
    /// See [`Document::etag`].
    pub etag: String,
    /// See [`Document::commit`].
    pub commit: Option<String>,
    /// See [`Document::lang`].
    pub lang: Option<String>,
    /// See [`Document::tags`].
    pub tags: Vec<String>,
    /// See [`Document::text`].
    pub text: String,
    /// See [`Document::chunks`]. Empty where it has no words: it is remembered all the same.
    pub chunks: Vec<Chunk>,
    /// What its owner keeps beside it, to be told with it; of files empty.
    pub metadata: Map<String, Value>,
}

impl Put {
    /// The same, borrowed.
    pub fn document(&self) -> Document<'_> {
        Document {
            path: &self.path,
            stamp: &self.stamp,
            etag: &self.etag,
            commit: self.commit.as_deref(),
            lang: self.lang.as_deref(),
            tags: &self.tags,
            text: &self.text,
            chunks: &self.chunks,
        }
    }
}

/// What is known of a document that is in an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// As it was put.
    pub stamp: Vec<u8>,
    /// As it was put.
    pub etag: String,
}

/// How much is in an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// Documents, those without chunks too.
    pub documents: u64,
    /// Chunks of all of them.
    pub chunks: u64,
    /// Chunks that have a vector by the model.
    pub with_vectors: u64,
    /// What it takes on its disk, where that is known.
    pub bytes: Option<u64>,
}

/// What is looked for.
#[derive(Debug, Clone, Default)]
pub struct Sought {
    /// In words.
    pub query: Option<String>,
    /// As a static vector.
    pub near: Option<Vec<f32>>,
    /// As a vector by the model.
    pub model: Option<Vec<f32>>,
    /// Where it is looked: exactly, before the best are taken.
    pub filter: Filter,
    /// How many by each way: by words, by static vector, by the model's.
    pub limit: usize,
}

/// What may be meant, at one moment of an engine.
pub struct Matched {
    /// The query taken apart and weighed, where there was one.
    pub question: Option<Question>,
    /// What is known of the whole engine.
    pub averages: Averages,
    /// Each once, in no order, with counts and vectors' likeness whatever way it was found by.
    pub candidates: Vec<Candidate>,
    /// How many chunks match at all, where that costs nothing to know.
    pub total: Option<u64>,
    /// Their vectors, by key.
    pub vectors: Arc<dyn Vectors>,
}

/// Vectors of what was found.
pub trait Vectors: Send + Sync {
    /// The vectors that the candidates with these keys have, in order.
    fn of(&self, keys: Vec<u64>, by: By) -> Doing<'_, Vec<Option<Vec<f32>>>>;
}

/// What vectors are made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// The vectors that are built in.
    Static,
    /// The configured model.
    Model,
}

/// A chunk without a vector by the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unembedded {
    /// What it says.
    pub hash: ChunkHash,
    /// Its document.
    pub path: String,
    /// Its first line, from 1.
    pub first: u32,
    /// Its last line.
    pub last: u32,
}
