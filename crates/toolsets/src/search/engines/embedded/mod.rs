//! An engine in this process, with its index in the user's cache folder or in memory.

mod kept;
mod pen;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::spawn_blocking;
use toolgate_search::index::{self, Index, IndexError, Place, Snapshot, Which};
use toolgate_search::{Filter, Space};

use super::{
    Begun, By, Doing, Engine, EngineError, Known, Leader, Matched, Named, Put, Sought, Source,
    Status, Unembedded, Vectors, Writer,
};
use kept::Kept;
use pen::Pen;

/// An engine in this process. Other processes share it through its folder.
pub struct Embedded {
    /// The folder of the index; `None` for memory.
    folder: Option<PathBuf>,
    model: Option<Space>,
    /// The documents that are in no file.
    kept: Option<Arc<Kept>>,
    opened: Arc<Mutex<Option<Index>>>,
}

impl Embedded {
    /// Creates the engine with its index in `folder`, for vectors of the space `model`. A namespace
    /// of documents keeps them in `documents`. Reads nothing yet.
    pub fn new(
        folder: Option<PathBuf>,
        model: Option<Space>,
        source: Source,
        documents: Option<PathBuf>,
    ) -> Self {
        // Documents in memory belong to this server alone, so their index is in memory too.
        let folder = folder.filter(|_| source == Source::Files || documents.is_some());
        let kept = match source {
            Source::Files => None,
            Source::Documents => Some(Arc::new(Kept::new(documents))),
        };
        Self { folder, model, kept, opened: Arc::default() }
    }

    fn index(&self) -> Result<Index, EngineError> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.ok_or_else(|| EngineError::Away("the index is not open yet; try again".to_owned()))
    }

    fn blocking<'e, T: Send + 'static>(
        &self,
        work: impl FnOnce(&Index, &dyn Fn() -> bool) -> Result<T, EngineError> + Send + 'static,
    ) -> Doing<'e, T> {
        let index = self.index();
        Box::pin(async move {
            let index = index?;
            blocking(move |wanted| work(&index, wanted)).await
        })
    }

    fn snapshot<'e, T: Send + 'static>(
        &self,
        work: impl FnOnce(&Snapshot, &dyn Fn() -> bool) -> Result<T, IndexError> + Send + 'static,
    ) -> Doing<'e, T> {
        self.blocking(|index, wanted| Ok(work(&index.snapshot()?, wanted)?))
    }
}

/// Runs `work` on a blocking thread. The function it gets returns false as soon as the caller is
/// gone.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    struct Left(Arc<AtomicBool>);
    impl Drop for Left {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let left = Left(Arc::default());
    let seen = left.0.clone();
    let done = spawn_blocking(move || work(&|| !seen.load(Ordering::Relaxed))).await;
    drop(left);
    done.map_err(|err| EngineError::Failed(format!("the index failed: {err}")))?
}

impl From<IndexError> for EngineError {
    fn from(err: IndexError) -> Self {
        let said = err.to_string();
        match err {
            IndexError::Damaged(_) => Self::Damaged(said),
            IndexError::Busy(_) => Self::Away(said),
            IndexError::Refused(_) | IndexError::Canceled | IndexError::Failed(_) => {
                Self::Failed(said)
            }
        }
    }
}

impl Engine for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn open(&self) -> Doing<'_, Begun> {
        let folder = self.folder.clone();
        let model = self.model.clone();
        let opened = self.opened.clone();
        let kept = self.kept.clone();
        Box::pin(blocking(move |_| {
            // The lock is not held while the disk is busy, because searches take it.
            if opened.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return Ok(Begun::Kept);
            }
            let (index, begun) = open(folder.as_deref(), model.as_ref())?;
            kept.map_or(Ok(()), |kept| fill(&index, &kept))?;
            *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(index);
            Ok(begun)
        }))
    }

    fn writer(&self) -> Doing<'_, Option<Box<dyn Writer>>> {
        let kept = self.kept.clone();
        let folder = self.folder.clone();
        self.blocking(move |index, _| {
            let Some(writer) = index.writer()? else { return Ok(None) };
            Ok(Some(Box::new(Pen::new(writer, kept, folder)) as Box<dyn Writer>))
        })
    }

    fn documents(&self) -> Doing<'_, BTreeMap<String, Known>> {
        self.snapshot(|snapshot, _| {
            let known = |it: index::Known| Known { stamp: it.stamp, etag: it.etag };
            Ok(snapshot.documents()?.into_iter().map(|(path, it)| (path, known(it))).collect())
        })
    }

    fn status(&self) -> Doing<'_, Status> {
        let on_disk = self.folder.is_some();
        self.blocking(move |index, _| {
            let index::Counts { documents, chunks, with_vectors } = index.snapshot()?.counts();
            let bytes = on_disk.then(|| index.bytes());
            Ok(Status { documents, chunks, with_vectors, bytes })
        })
    }

    fn candidates(&self, sought: Sought) -> Doing<'_, Matched> {
        self.snapshot(move |snapshot, wanted| {
            let Sought { query, near, model, filter, limit } = sought;
            let question = query.map(|query| snapshot.question(&query)).transpose()?;
            let sought = index::Sought {
                near: near.as_deref(),
                model: model.as_deref(),
                filter: &filter,
                limit,
            };
            let found = snapshot.candidates(question.as_ref(), &sought, wanted)?;
            Ok(Matched {
                question,
                averages: snapshot.averages(),
                candidates: found.candidates,
                total: Some(found.total),
                vectors: Arc::new(Moment(snapshot.clone())),
            })
        })
    }

    fn named(&self, name: String, filter: Filter, limit: usize) -> Doing<'_, Vec<Named>> {
        self.snapshot(move |snapshot, _| snapshot.named(&name, &filter, limit))
    }

    fn unembedded(&self, most: usize) -> Doing<'_, Vec<Unembedded>> {
        self.snapshot(move |snapshot, _| {
            let of = |it: index::Unembedded| {
                let index::Unembedded { hash, path, first, last } = it;
                Unembedded { hash, path, first, last }
            };
            Ok(snapshot.unembedded(most)?.into_iter().map(of).collect())
        })
    }

    fn leader(&self) -> Doing<'_, Option<Leader>> {
        self.blocking(|index, _| Ok(index.leader()))
    }

    fn kept(&self, path: String) -> Doing<'_, Option<Put>> {
        let kept = self.kept.clone();
        Box::pin(blocking(move |_| kept.map_or(Ok(None), |kept| kept.get(&path))))
    }

    fn reset(&self) -> Doing<'_, ()> {
        let folder = self.folder.clone();
        let model = self.model.clone();
        let opened = self.opened.clone();
        let kept = self.kept.clone();
        Box::pin(blocking(move |_| {
            *opened.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let place = folder.as_deref().map_or(Place::Memory, Place::Folder);
            let (index, _) = match Index::remove(place) {
                Ok(()) => open(folder.as_deref(), model.as_ref())?,
                // Another process writes the index and may have rebuilt it.
                Err(IndexError::Busy(_)) => Index::open(place, model.as_ref())?,
                Err(err) => return Err(err.into()),
            };
            kept.map_or(Ok(()), |kept| fill(&index, &kept))?;
            *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(index);
            Ok(())
        }))
    }
}

/// Opens the index in `folder`. If it cannot be written or has another version, opens one in
/// memory.
fn open(
    folder: Option<&std::path::Path>,
    model: Option<&Space>,
) -> Result<(Index, Begun), EngineError> {
    let Some(folder) = folder else { return Ok(Index::open(Place::Memory, model)?) };
    match Index::open(Place::Folder(folder), model) {
        Err(IndexError::Busy(why) | IndexError::Failed(why)) => {
            tracing::warn!("what is searched is indexed in memory, for this server alone: {why}");
            Ok(Index::open(Place::Memory, model)?)
        }
        opened => Ok(opened?),
    }
}

/// Makes `index` match the documents that are `kept`, because an earlier server may have died
/// between the two writes.
fn fill(index: &Index, kept: &Kept) -> Result<(), EngineError> {
    // Another process has the right to write and does this itself.
    let Some(mut writer) = index.writer()? else { return Ok(()) };
    kept.undo()?;
    let kept = kept.load()?;
    let known = index.snapshot()?.documents()?;
    let paths: BTreeSet<&str> = kept.iter().map(|put| put.path.as_str()).collect();
    let gone = known.keys().filter(|path| !paths.contains(path.as_str()));
    let is_new = |put: &&Put| known.get(&put.path).is_none_or(|it| it.etag != put.etag);
    for path in gone {
        writer.remove(path)?;
    }
    for put in kept.iter().filter(is_new) {
        writer.put(&put.document())?;
    }
    Ok(writer.commit()?)
}

/// One state of an index.
struct Moment(Snapshot);

impl Vectors for Moment {
    fn of(&self, keys: Vec<u64>, by: By) -> Doing<'_, Vec<Option<Vec<f32>>>> {
        let snapshot = self.0.clone();
        let which = match by {
            By::Static => Which::Static,
            By::Model => Which::Model,
        };
        Box::pin(blocking(move |_| {
            Ok(keys.into_iter().map(|key| snapshot.vector(key, which)).collect())
        }))
    }
}
