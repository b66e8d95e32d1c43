//! Searching by meaning: what is found in a small corpus, and how fresh and how bounded it is.

mod corpus;
mod asked;
mod fresh;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolgate_contract::{Caller, Ctx, Fault};

use super::{Folders, Found, Service, Settings, State, Wanted, distinct_tags};
use crate::files;
use crate::world::{Fetch, Root};

fn service(root: &Path, settings: &Settings) -> Arc<Service> {
    kept(root, settings, Folders::default())
}

fn kept(root: &Path, settings: &Settings, folders: Folders) -> Arc<Service> {
    let root = Root::open(root).unwrap();
    let files = files::Settings::default();
    Service::new(&root, settings, &files, folders, &Fetch::default()).unwrap().unwrap()
}

fn wanted(query: &str) -> Wanted {
    Wanted { query: Some(query.to_owned()), top_k: 5, rerank: true, ..Wanted::default() }
}

fn ctx() -> Ctx {
    Ctx::alone(Caller::local(), Instant::now() + Duration::from_secs(60))
}

async fn search(service: &Service, wanted: Wanted) -> Found {
    service.search(&ctx(), wanted).await.unwrap()
}

async fn refusal(service: &Service, wanted: Wanted) -> (Fault, String) {
    let err = service.search(&ctx(), wanted).await.err().expect("a refusal");
    (err.fault, err.message)
}
