//! An index of files or documents, with the task that keeps it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use toolgate_chunks::{Sort, chunks};
use toolgate_contract::{Ctx, Fault, ToolError};
use toolgate_search::Embedder;

use super::checkout::Checkout;
use super::documents::{self, Change, Changed, Librarian};
use super::embedding::Embedding;
use super::files::{Bounds, left_out};
use super::keeper::{self, Keeper, SoFar};
use super::progress::{Indexed, Progress, State};
use super::{Service, cannot};
use crate::search::engines::{Engine, EngineError, Put};
use crate::world::Root;
use crate::world::root::Etag;

/// The capacity of a keeper's queue. Further requests do not wait for it.
const ASKS_MAX: usize = 256;

/// An index and its keeper.
pub(super) struct Collection {
    pub(super) engine: Arc<dyn Engine>,
    root: Option<Root>,
    checkout: Option<Arc<Checkout>>,
    progress: watch::Receiver<Progress>,
    asks: Asks,
    _keeper: AbortOnDropHandle<()>,
}

enum Asks {
    Files(mpsc::Sender<keeper::Ask>),
    Documents(mpsc::Sender<documents::Ask>),
}

/// A document from a caller.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) id: String,
    pub(crate) text: String,
    /// A file name whose ending selects how the text is cut.
    pub(crate) sort: String,
    pub(crate) tags: Vec<String>,
    pub(crate) metadata: Map<String, Value>,
}

/// The number of documents that an upsert changed.
pub(crate) type Upserted = Changed;

impl Collection {
    /// Starts to keep an index of the files of `root`.
    pub(super) fn files(
        root: Root,
        engine: Arc<dyn Engine>,
        kept_in: &[&Path],
        service: &Service,
    ) -> Self {
        let (told, progress) = watch::channel(Progress::default());
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let cancel = CancellationToken::new();
        let embedding = Embedding::new(service.embedder.clone(), Some(&root), &cancel);
        let keeper = Keeper {
            root: root.clone(),
            engine: engine.clone(),
            bounds: Bounds {
                files_max: service.settings.files_max,
                bytes_max: service.settings.text_bytes_max,
            },
            left_out: left_out(&root, kept_in),
            embedding,
            told,
            asks: asked,
            waiting: Vec::new(),
            changed: BTreeSet::new(),
            writes: 0,
            cancel,
            so_far: SoFar::default(),
        };
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.keep()));
        let checkout = Some(Arc::new(Checkout::new(&root)));
        let root = Some(root);
        let asks = Asks::Files(asks);
        Self { engine, root, checkout, progress, asks, _keeper: keeper }
    }

    /// Starts to keep an index of documents.
    pub(super) fn documents(engine: Arc<dyn Engine>, embedder: Option<Arc<dyn Embedder>>) -> Self {
        let (told, progress) = watch::channel(Progress::default());
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let cancel = CancellationToken::new();
        let embedding = Embedding::new(embedder, None, &cancel);
        let librarian = Librarian {
            engine: engine.clone(),
            embedding,
            told,
            asks: asked,
            cancel,
            waiting: Vec::new(),
            interrupted: None,
            rebuilt: None,
        };
        let keeper = AbortOnDropHandle::new(tokio::spawn(librarian.keep()));
        let asks = Asks::Documents(asks);
        Self { engine, root: None, checkout: None, progress, asks, _keeper: keeper }
    }

    /// Returns the root of its files, or `None` for documents.
    pub(super) fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    /// Returns the git checkout of its files, or `None` for documents.
    pub(super) fn checkout(&self) -> Option<&Arc<Checkout>> {
        self.checkout.as_ref()
    }

    /// Returns the progress of the index.
    pub(super) fn indexed(&self) -> Indexed {
        self.progress.borrow().told()
    }

    /// Returns the reason if writing failed.
    pub(super) fn unwritten(&self) -> Option<String> {
        let progress = self.progress.borrow();
        progress.note.clone().filter(|_| progress.unwritten)
    }

    /// Returns the state of the index.
    pub(super) fn state(&self) -> State {
        self.progress.borrow().state
    }

    /// Waits until the index has all changes up to now, or until `until`. Returns its progress.
    ///
    /// # Errors
    ///
    /// If the index is unavailable or the call is canceled.
    pub(super) async fn fresh(
        &self,
        ctx: &Ctx,
        name: &str,
        until: Instant,
    ) -> Result<Indexed, ToolError> {
        let (done, mut caught_up) = oneshot::channel();
        // If too many wait already, this search uses the index as it is.
        let asked = match &self.asks {
            Asks::Files(asks) => asks.try_send(keeper::Ask::CatchUp(done)).is_ok(),
            Asks::Documents(asks) => asks.try_send(documents::Ask::CatchUp(done)).is_ok(),
        };
        let mut progress = self.progress.clone();
        loop {
            if !asked {
                break;
            }
            tokio::select! {
                _ = &mut caught_up => break,
                changed = progress.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let Progress { state, files, total, .. } = progress.borrow_and_update().clone();
                    if state.is_on_the_way() {
                        #[allow(clippy::cast_precision_loss, reason = "progress is a picture")]
                        let part = files as f64;
                        let whole = total.map(|total| total as f64);
                        ctx.progress(part, whole, Some(format!("{files} files indexed")));
                    }
                }
                () = tokio::time::sleep_until(until.into()) => break,
                () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
            }
        }
        if ctx.cancel.is_cancelled() {
            return Err(ToolError::canceled());
        }
        let progress = self.progress.borrow();
        match progress.state {
            State::Away => {
                let why = progress.note.as_deref().unwrap_or("it is away");
                let message = format!("{}: {why}", cannot(name));
                Err(ToolError::new(Fault::Unavailable, message))
            }
            State::Absent
            | State::Building
            | State::Rebuilding
            | State::Ready
            | State::Following => Ok(progress.told()),
        }
    }

    /// Asks the keeper to read the file at `path`, which changed without an event.
    pub(super) fn is_changed(&self, path: String) {
        if let Asks::Files(asks) = &self.asks {
            // If the queue is full, the next search reports the file again.
            let _ = asks.try_send(keeper::Ask::Changed(path));
        }
    }

    /// Asks for a rebuild if `err` reports damage, so that another attempt may succeed.
    ///
    /// # Errors
    ///
    /// `err`, if another attempt is of no use.
    pub(super) async fn renewed(&self, err: EngineError) -> Result<(), EngineError> {
        match err {
            EngineError::Damaged(why) => {
                match &self.asks {
                    Asks::Files(asks) => drop(asks.send(keeper::Ask::Damaged(why)).await),
                    Asks::Documents(asks) => drop(asks.send(documents::Ask::Damaged(why)).await),
                }
                Ok(())
            }
            // The index is being rebuilt.
            EngineError::Away(_) if self.state().is_on_the_way() => Ok(()),
            EngineError::Away(_) | EngineError::Failed(_) => Err(err),
        }
    }

    /// Puts and removes documents.
    ///
    /// # Errors
    ///
    /// If the collection has files, or its keeper has ended.
    pub(super) async fn change(
        &self,
        put: Vec<Document>,
        remove: Vec<String>,
        documents_max: u64,
    ) -> Result<Result<Changed, EngineError>, ToolError> {
        let ended = || ToolError::failed("the index has ended");
        let Asks::Documents(asks) = &self.asks else {
            return Err(ToolError::invalid("/namespace", "it has files, which are not put"));
        };
        let made = move || put.into_iter().map(Document::made).collect::<Vec<_>>();
        let put = tokio::task::spawn_blocking(made)
            .await
            .map_err(|err| ToolError::because("taking documents apart failed", err))?;
        let (done, changed) = oneshot::channel();
        let change = Change { put, remove, documents_max, done };
        asks.send(documents::Ask::Change(change)).await.map_err(|_| ended())?;
        changed.await.map_err(|_| ended())
    }
}

impl Document {
    fn made(self) -> Put {
        let Self { id, text, sort, tags, metadata } = self;
        let etag = Etag::of(text.as_bytes()).to_string();
        // The etag covers the tags and metadata, too.
        let beside = serde_json::to_string(&(&sort, &tags, &metadata)).unwrap_or_default();
        let etag = match tags.is_empty() && metadata.is_empty() {
            true => etag,
            false => Etag::of(format!("{etag} {beside}").as_bytes()).to_string(),
        };
        Put {
            chunks: chunks(&sort, &text),
            path: id,
            etag,
            commit: None,
            lang: Sort::of(&sort).lang.map(str::to_owned),
            stamp: sort.into_bytes(),
            tags,
            text,
            metadata,
        }
    }
}
