//! The server that all namespaces have their engines at, where the settings name one.

use std::path::Path;
use std::sync::Arc;

use toolgate_search::Space;

#[cfg(feature = "qdrant")]
use super::qdrant;
use super::settings::EngineSettings;
use super::{Doing, Engine, Identity, postgres};

/// A server of an engine.
pub enum Server {
    /// PostgreSQL with pgvector.
    Postgres(postgres::Server),
    /// Qdrant.
    #[cfg(feature = "qdrant")]
    Qdrant(qdrant::Server),
}

impl Server {
    /// The one that `settings` name; `None` where the index is kept in this process. Nothing is
    /// connected yet.
    ///
    /// # Errors
    /// When the settings cannot be used: which, and why.
    pub fn of(settings: &EngineSettings) -> Result<Option<Self>, String> {
        match settings {
            EngineSettings::Embedded => Ok(None),
            EngineSettings::Postgres(settings) => postgres::Server::of(settings)
                .map(|server| Some(Self::Postgres(server)))
                .map_err(|why| format!("`search.engine.postgres.url` {why}")),
            #[cfg(feature = "qdrant")]
            EngineSettings::Qdrant(settings) => qdrant::Server::of(settings)
                .map(|server| Some(Self::Qdrant(server)))
                .map_err(|why| format!("`search.engine.qdrant.url` {why}")),
            // They say so themselves.
            #[cfg(not(feature = "qdrant"))]
            EngineSettings::Qdrant(_) => settings.check().map(|()| None),
        }
    }

    /// The engine of the namespace `identity`, for vectors of the space `model`.
    pub fn engine(&self, identity: Identity, model: Option<Space>) -> Arc<dyn Engine> {
        match self {
            Self::Postgres(server) => server.engine(identity, model),
            #[cfg(feature = "qdrant")]
            Self::Qdrant(server) => server.engine(identity, model),
        }
    }

    /// The namespaces of documents that the workspace `root` has there.
    pub fn document_namespaces<'e>(&'e self, root: &Path) -> Doing<'e, Vec<String>> {
        match self {
            Self::Postgres(server) => server.document_namespaces(root),
            #[cfg(feature = "qdrant")]
            Self::Qdrant(server) => server.document_namespaces(root),
        }
    }
}
