//! An engine in PostgreSQL with pgvector, for large workspaces and for several servers that share
//! an index.

mod address;
mod connections;
mod copying;
mod documents;
mod find;
mod kept;
mod rows;
mod tables;
mod trouble;
mod upkeep;
mod write;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use toolgate_search::index::Named;
use toolgate_search::{Filter, Space};

use super::settings::PostgresSettings;
use super::{
    Begun, By, Doing, Engine, EngineError, Identity, Known, Matched, Put, Sought, Source, Status,
    Unembedded, Vectors, Writer,
};
pub(super) use address::Address;
use connections::{Connections, Shared};
use tables::Tables;
use upkeep::Upkeep;
use write::{PostgresWriter, Refused, WRITE_WITHIN};

/// The time limit for preparing tables.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The longest wait until the server notices that a writer is gone.
const GONE_WITHIN: Duration = Duration::from_secs(3);

/// A PostgreSQL server that has an engine for each namespace.
pub struct Server {
    connections: Shared,
    workspace: Option<String>,
    approximate_from: u64,
}

impl Server {
    /// Creates the server that `settings` name. Does not connect yet.
    ///
    /// # Errors
    ///
    /// If the settings cannot be used. The message continues after the name of the setting.
    pub fn of(settings: &PostgresSettings) -> Result<Self, String> {
        let PostgresSettings { workspace, connections, timeout_ms, approximate_from, .. } =
            settings;
        let address = Address::of(settings)?;
        let within = Duration::from_millis(*timeout_ms);
        Ok(Self {
            connections: Arc::new(Connections::new(address, *connections, within)),
            workspace: workspace.clone(),
            approximate_from: *approximate_from,
        })
    }

    /// Returns the engine of the namespace `identity`, for vectors of the space `model`.
    pub fn engine(&self, identity: Identity, model: Option<Space>) -> Arc<dyn Engine> {
        Arc::new(self.postgres(identity, model))
    }

    fn postgres(&self, identity: Identity, model: Option<Space>) -> Postgres {
        Postgres {
            connections: self.connections.clone(),
            workspace: self.workspace(&identity.root),
            identity,
            model,
            upkeep: Arc::new(Upkeep::new(self.approximate_from)),
            tables: Mutex::default(),
        }
    }

    /// Returns the namespaces of documents that the workspace `root` has on the server.
    pub fn document_namespaces<'e>(&'e self, root: &Path) -> Doing<'e, Vec<String>> {
        let workspace = self.workspace(root);
        Box::pin(async move {
            let lent = self.connections.lend().await?;
            let work = tables::document_namespaces(&lent.client.client, &workspace);
            let came = self.connections.within(self.connections.within, work).await;
            lent.settle(came)
        })
    }

    /// Returns the name of the workspace `root` on the server.
    fn workspace(&self, root: &Path) -> String {
        let workspace = self.workspace.clone();
        let workspace = workspace.unwrap_or_else(|| root.to_string_lossy().into_owned());
        rows::short(&workspace.replace('\0', ""))
    }
}

struct Postgres {
    connections: Shared,
    /// The name of the workspace on the server.
    workspace: String,
    identity: Identity,
    model: Option<Space>,
    upkeep: Arc<Upkeep>,
    /// The tables of the namespace; `None` before they are opened.
    tables: Mutex<Option<Arc<Tables>>>,
}

impl Postgres {
    /// Returns the tables, and opens the index on first use.
    async fn tables(&self) -> Result<Arc<Tables>, EngineError> {
        let known = self.tables.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Some(tables) => Ok(tables),
            None => Ok(self.ready().await?.0),
        }
    }

    async fn ready(&self) -> Result<(Arc<Tables>, Begun), EngineError> {
        let mut lent = self.connections.lend().await?;
        let work = tables::ready(
            &mut lent.client.client,
            &self.workspace,
            &self.identity,
            self.model.as_ref(),
        );
        let came = self.connections.within(READY_WITHIN, work).await;
        let (tables, begun) = lent.settle(came)?;
        let tables = Arc::new(tables);
        *self.tables.lock().unwrap_or_else(PoisonError::into_inner) = Some(tables.clone());
        if matches!(begun, Begun::Rebuilt(_)) && self.identity.source == Source::Documents {
            self.put_again(&tables).await?;
        }
        Ok((tables, begun))
    }

    /// Puts the kept documents into the index again.
    async fn put_again(&self, tables: &Arc<Tables>) -> Result<(), EngineError> {
        let until = Instant::now() + GONE_WITHIN;
        let mut writer = loop {
            match self.hold(tables.clone()).await? {
                Some(writer) => break writer,
                // The process that writes has put them, or will.
                None if Instant::now() > until => return Ok(()),
                None => tokio::time::sleep(GONE_WITHIN / 50).await,
            }
        };
        let came = kept::kept(&writer.connected.client, &writer.tables, None).await;
        let kept = came.map_err(|trouble| self.connections.told(&trouble))?;
        if !kept.is_empty() {
            writer.put_as(kept, Refused::LeftOut).await?;
            writer.commit().await?;
        }
        Ok(())
    }

    /// Acquires the right to write, unless another process has it.
    async fn hold(&self, tables: Arc<Tables>) -> Result<Option<PostgresWriter>, EngineError> {
        let connected = self.connections.connect(WRITE_WITHIN).await?;
        let (class, key) = tables.lock();
        let work = async {
            let sql = "select pg_try_advisory_lock($1, $2)";
            let given = [(&class as _, Type::INT4), (&key as _, Type::INT4)];
            Ok(connected.client.query_typed_one(sql, &given).await?.get::<_, bool>(0))
        };
        let came = self.connections.within(self.connections.within, work).await;
        let held = came.map_err(|trouble| self.connections.told(&trouble))?;
        let connections = self.connections.clone();
        let source = self.identity.source;
        let upkeep = self.upkeep.clone();
        Ok(held.then(|| PostgresWriter::new(connections, connected, tables, source, upkeep)))
    }
}

/// Runs `$work` on a lent connection, within the time limit of a query.
macro_rules! asked {
    ($self:ident, |$client:ident, $tables:ident| $work:expr) => {
        Box::pin(async move {
            let $tables = $self.tables().await?;
            let mut lent = $self.connections.lend().await?;
            let $client = &mut lent.client.client;
            let came = $self.connections.within($self.connections.within, $work).await;
            lent.settle(came)
        })
    };
}

impl Engine for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn open(&self) -> Doing<'_, Begun> {
        Box::pin(async move { Ok(self.ready().await?.1) })
    }

    fn writer(&self) -> Doing<'_, Option<Box<dyn Writer>>> {
        Box::pin(async move {
            let writer = self.hold(self.tables().await?).await?;
            Ok(writer.map(|writer| Box::new(writer) as Box<dyn Writer>))
        })
    }

    fn documents(&self) -> Doing<'_, BTreeMap<String, Known>> {
        asked!(self, |client, tables| find::documents(client, &tables))
    }

    fn status(&self) -> Doing<'_, Status> {
        asked!(self, |client, tables| find::status(client, &tables))
    }

    fn candidates(&self, sought: Sought) -> Doing<'_, Matched> {
        Box::pin(async move {
            let tables = self.tables().await?;
            let mut lent = self.connections.lend().await?;
            let work = find::candidates(&mut lent.client.client, &tables, &sought);
            let came = self.connections.within(self.connections.within, work).await;
            let find::Found { question, averages, candidates } = lent.settle(came)?;
            let connections = self.connections.clone();
            let vectors = Arc::new(OfFound { connections, tables });
            Ok(Matched { question, averages, candidates, total: None, vectors })
        })
    }

    fn named(&self, name: String, filter: Filter, limit: usize) -> Doing<'_, Vec<Named>> {
        asked!(self, |client, tables| find::named(client, &tables, &name, &filter, limit))
    }

    fn unembedded(&self, most: usize) -> Doing<'_, Vec<Unembedded>> {
        asked!(self, |client, tables| find::unembedded(client, &tables, most))
    }

    fn kept(&self, path: String) -> Doing<'_, Option<Put>> {
        asked!(self, |client, tables| async {
            Ok(kept::kept(client, &tables, Some(&path)).await?.pop())
        })
    }

    fn reset(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            // The cached tables may have been dropped.
            *self.tables.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let (tables, begun) = self.ready().await?;
            if begun == Begun::Kept {
                let mut lent = self.connections.lend().await?;
                let client = &mut lent.client.client;
                let work = async {
                    let work = client.transaction().await?;
                    tables.renew(&work).await?;
                    Ok(work.commit().await?)
                };
                let came = self.connections.within(READY_WITHIN, work).await;
                lent.settle(came)?;
                if self.identity.source == Source::Documents {
                    self.put_again(&tables).await?;
                }
            }
            Ok(())
        })
    }
}

/// Loads the vectors of found chunks on demand.
struct OfFound {
    connections: Shared,
    tables: Arc<Tables>,
}

impl Vectors for OfFound {
    fn of(&self, keys: Vec<u64>, by: By) -> Doing<'_, Vec<Option<Vec<f32>>>> {
        Box::pin(async move {
            let lent = self.connections.lend().await?;
            let work = find::vectors(&lent.client.client, &self.tables, &keys, by);
            let came = self.connections.within(self.connections.within, work).await;
            lent.settle(came)
        })
    }
}
