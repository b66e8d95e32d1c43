//! Other MCP servers, seen as toolsets: connected when they are needed, watched over, and bridged
//! from any revision to any other.
//!
//! What of the world they are made of (programs, connections) they are handed as a [`World`]; what
//! is kept and offered of them is told to [`Keeps`].

mod settings;
mod world;
mod message;
mod wire;
mod wires;
mod link;
mod listing;
mod names;
pub mod pins;
mod hearing;
mod carried;
mod lanes;
mod ready;
mod results;
mod upstream;
mod tool;
mod resources;
mod prompts;

use std::sync::Arc;

use futures_util::future::join_all;
use toolgate_contract::{BoxFuture, Changes, Prompts, Resources};

pub use listing::Listing;
pub use results::Results;
pub use settings::{Settings, Tables, Transport};
pub use upstream::{Keeps, Upstream};
pub use world::{Bytes, Place, Program, Started, World};

/// All upstreams of a server. Clones are one.
#[derive(Clone)]
pub struct Upstreams(Arc<[Arc<Upstream>]>, Results);

impl Upstreams {
    /// The upstreams of `tables`, which connect to nothing yet.
    ///
    /// # Errors
    /// When one cannot be, with which and why.
    pub fn new(
        tables: &Tables,
        world: &Arc<dyn World>,
        keeps: &Arc<dyn Keeps>,
        changes: &Changes,
    ) -> Result<Self, String> {
        let (mut all, results) = (Vec::new(), Results::default());
        for (name, settings) in tables.iter().filter(|(_, settings)| settings.enabled) {
            let sound = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            if name.is_empty() || !name.bytes().all(sound) {
                return Err(format!("[upstream.{name}]: a name has a-z, 0-9 and `_` alone"));
            }
            settings.check().map_err(|why| format!("[upstream.{name}]: {why}"))?;
            let (world, keeps) = (world.clone(), keeps.clone());
            let settings = settings.clone();
            let handed = (world, keeps, results.clone());
            all.push(Upstream::new(name, settings, handed, changes.clone()));
        }
        Ok(Self(all.into(), results))
    }

    /// Their answers that were too long to be given at once.
    pub fn results(&self) -> &Results {
        &self.1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Offers what each is known to have.
    pub fn offer(&self) {
        self.0.iter().for_each(|upstream| upstream.offer());
    }

    /// Whether it is known of each what it has.
    pub fn are_known(&self) -> bool {
        self.0.iter().all(|upstream| upstream.is_known())
    }

    /// Their resources.
    pub fn resources(&self) -> impl Iterator<Item = Arc<dyn Resources>> {
        let some = self.0.iter().filter(|upstream| upstream.settings.resources);
        some.map(|upstream| resources::Source::new(upstream) as _)
    }

    /// Their prompts.
    pub fn prompts(&self) -> impl Iterator<Item = Arc<dyn Prompts>> {
        let some = self.0.iter().filter(|upstream| upstream.settings.prompts);
        some.map(|upstream| Arc::new(prompts::Source(upstream.clone())) as _)
    }

    /// What each of those `wanted` by name has now, or why it does not say.
    pub async fn ask(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(String, Result<Listing, String>)> {
        let some = self.0.iter().filter(|upstream| wanted(&upstream.name));
        let asked = some.map(async |upstream| (upstream.name.clone(), upstream.ask_all().await));
        join_all(asked).await
    }

    /// Waits until each has been asked once what it has, for as long as it may take to begin.
    pub fn listed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            join_all(self.0.iter().map(|upstream| upstream.is_listed())).await;
        })
    }

    /// Ends all connections and programs.
    pub fn close(&self) {
        self.0.iter().for_each(|upstream| upstream.close());
    }
}
