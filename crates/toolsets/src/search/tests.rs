//! Tests of the search tools: results in a small corpus, freshness and limits.

mod corpus;
mod limits;
mod fresh;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolgate_contract::{Caller, ToolContext, ToolErrorKind};

use super::{
    IndexFolders, IndexLimits, IndexState, SearchRequest, SearchResult, SearchService,
    SearchSettings, distinct_tags,
};
use crate::files;
use toolgate_world::{HttpFetcher, Root};

fn service(root: &Path, settings: &SearchSettings) -> Arc<SearchService> {
    service_in(root, settings, IndexFolders::default())
}

fn service_in(root: &Path, settings: &SearchSettings, folders: IndexFolders) -> Arc<SearchService> {
    let root = Root::open(root).unwrap();
    let files = files::FileSettings::default();
    SearchService::new(&root, settings, &files, folders, &HttpFetcher::default()).unwrap()
}

fn request(query: &str) -> SearchRequest {
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

async fn search(service: &SearchService, request: SearchRequest) -> SearchResult {
    service.search(&ctx(), request).await.unwrap()
}

async fn search_error(service: &SearchService, request: SearchRequest) -> (ToolErrorKind, String) {
    let err = service.search(&ctx(), request).await.err().expect("an error");
    (err.fault, err.message)
}
