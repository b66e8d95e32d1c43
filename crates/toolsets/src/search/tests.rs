//! Searching by meaning: what is found in a small corpus, and how fresh and how bounded it is.

mod corpus;
mod asked;
mod fresh;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolgate_contract::{Caller, ToolContext, ToolFault};

use super::{
    IndexFolders, IndexState, SearchRequest, SearchResult, SearchService, Settings, distinct_tags,
};
use crate::files;
use toolgate_world::{HttpFetcher, Root};

fn service(root: &Path, settings: &Settings) -> Arc<SearchService> {
    kept(root, settings, IndexFolders::default())
}

fn kept(root: &Path, settings: &Settings, folders: IndexFolders) -> Arc<SearchService> {
    let root = Root::open(root).unwrap();
    let files = files::FileSettings::default();
    SearchService::new(&root, settings, &files, folders, &HttpFetcher::default()).unwrap().unwrap()
}

fn wanted(query: &str) -> SearchRequest {
    SearchRequest {
        query: Some(query.to_owned()),
        top_k: 5,
        rerank: true,
        ..SearchRequest::default()
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60))
}

async fn search(service: &SearchService, wanted: SearchRequest) -> SearchResult {
    service.search(&ctx(), wanted).await.unwrap()
}

async fn refusal(service: &SearchService, wanted: SearchRequest) -> (ToolFault, String) {
    let err = service.search(&ctx(), wanted).await.err().expect("a refusal");
    (err.fault, err.message)
}
