//! What has an index of its own: files of a root, or documents; with the task that keeps it.

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

/// How many may wait for a keeper at a time; further ones do not wait.
const ASKS_MAX: usize = 256;

/// An index, and whoever keeps it.
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

/// A document as a caller puts it.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) id: String,
    pub(crate) text: String,
    /// By which it is cut into passages: a name of a file of its sort.
    pub(crate) sort: String,
    pub(crate) tags: Vec<String>,
    pub(crate) metadata: Map<String, Value>,
}

/// What became of documents that were put.
pub(crate) type Upserted = Changed;

impl Collection {
    /// The index of the files of `root`, kept from here on.
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
        let (root, asks) = (Some(root), Asks::Files(asks));
        Self { engine, root, checkout, progress, asks, _keeper: keeper }
    }

    /// The index of documents, kept from here on.
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

    /// Where its files are; `None` of documents.
    pub(super) fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    /// Which commit its files are of; `None` of documents.
    pub(super) fn checkout(&self) -> Option<&Arc<Checkout>> {
        self.checkout.as_ref()
    }

    /// How far it is.
    pub(super) fn indexed(&self) -> Indexed {
        self.progress.borrow().told()
    }

    /// Why what was read could not be written, where it could not.
    pub(super) fn unwritten(&self) -> Option<String> {
        let progress = self.progress.borrow();
        progress.note.clone().filter(|_| progress.unwritten)
    }

    /// How far it is, in a word.
    pub(super) fn state(&self) -> State {
        self.progress.borrow().state
    }

    /// Waits until all that happened up to now is in it, or `until`; how far it is then.
    ///
    /// # Errors
    /// When it is away.
    pub(super) async fn fresh(
        &self,
        ctx: &Ctx,
        name: &str,
        until: Instant,
    ) -> Result<Indexed, ToolError> {
        let (done, mut caught_up) = oneshot::channel();
        // Where too many wait already, this one goes by what is there.
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
                        let (part, whole) = (files as f64, total.map(|total| total as f64));
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

    /// Has the file at `path` looked at, which is not as it was indexed: nothing was heard of that.
    pub(super) fn is_changed(&self, path: String) {
        if let Asks::Files(asks) = &self.asks {
            // Where too many wait already, the next search sees it, too.
            let _ = asks.try_send(keeper::Ask::Changed(path));
        }
    }

    /// Has it made anew where `err` says that it is damaged: asked again, it may answer.
    ///
    /// # Errors
    /// `err`, where asking again is of no use.
    pub(super) async fn renewed(&self, err: EngineError) -> Result<(), EngineError> {
        match err {
            EngineError::Damaged(why) => {
                match &self.asks {
                    Asks::Files(asks) => drop(asks.send(keeper::Ask::Damaged(why)).await),
                    Asks::Documents(asks) => drop(asks.send(documents::Ask::Damaged(why)).await),
                }
                Ok(())
            }
            // It is being made anew just now.
            EngineError::Away(_) if self.state().is_on_the_way() => Ok(()),
            EngineError::Away(_) | EngineError::Failed(_) => Err(err),
        }
    }

    /// Puts and takes out documents.
    ///
    /// # Errors
    /// When it has files, or its keeper has ended.
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
        // Another text, other tags or other metadata: another document.
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
