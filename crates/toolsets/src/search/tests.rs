//! Searching by meaning: what is found in a small corpus, and how fresh and how bounded it is.

mod corpus;
mod fresh;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolgate_contract::{Caller, Ctx, Fault};

use super::{Engine, Found, Settings, Wanted, distinct_tags};
use crate::files;
use crate::world::Root;

fn engine(root: &Path, settings: &Settings) -> Arc<Engine> {
    let root = Root::open(root).unwrap();
    Engine::new(&root, settings, &files::Settings::default()).unwrap()
}

fn wanted(query: &str) -> Wanted {
    Wanted { query: Some(query.to_owned()), top_k: 5, rerank: true, ..Wanted::default() }
}

fn ctx() -> Ctx {
    Ctx::alone(Caller::local(), Instant::now() + Duration::from_secs(60))
}

async fn search(engine: &Engine, wanted: Wanted) -> Found {
    engine.search(&ctx(), wanted).await.unwrap()
}

async fn refusal(engine: &Engine, wanted: Wanted) -> (Fault, String) {
    let err = engine.search(&ctx(), wanted).await.err().expect("a refusal");
    (err.fault, err.message)
}
