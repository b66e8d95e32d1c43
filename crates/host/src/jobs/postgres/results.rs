//! Shares long results among the servers of a fleet, so that a caller can read them at any of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use toolgate_contract::{Caller, ResourceSpec, SharedLongResult};
use toolgate_postgres::PostgresError;

use super::files::{
    ContentSharingError, FleetContentStore, SharedContent, SharedContentId, SharedContentLocation,
    SharedContentRow, content_id,
};
use crate::jobs::store::JobStoreError;
use crate::jobs::stored_form::{parse_json, to_json};

/// Maximum total size in bytes of the long results of a workspace. Beyond it, the oldest ones
/// expire early.
const RESULT_BYTES_MAX: i64 = 1 << 30;
/// Number of bytes of new results after which a server lets the oldest results expire.
const CHECK_BYTES: u64 = 16 << 20;
/// Number of bytes that are added to the size of each long result for its database row.
const OVERHEAD_BYTES: u64 = 512;
/// Maximum number of results of a caller that are listed.
const LISTED_MAX: i64 = 10_000;

/// Caller, list entry and lifetime of a long result, for its database row.
pub(super) struct SharedResultRow {
    caller: String,
    /// JSON of the entry of the result in lists.
    entry: String,
    is_text: bool,
    /// Time for which the result is kept.
    pub(super) keep: Duration,
}

/// Database row of a long result, with the location of its content.
struct LocatedSharedResult {
    place: SharedContentLocation,
    entry: String,
    is_text: bool,
    /// Time until the result expires, in seconds.
    left: f64,
}

impl SharedResultRow {
    /// Inserts the database row of this long result, whose content has the id `id`.
    pub(super) async fn insert(
        &self,
        client: &impl GenericClient,
        id: &SharedContentId,
        workspace: &str,
    ) -> Result<(), PostgresError> {
        let sql = "INSERT INTO toolgate_fleet.results (file, workspace, caller, entry, is_text) \
                   VALUES ($1, $2, $3, $4, $5)";
        let id = id.as_slice();
        let params = [
            (&id as _, Type::BYTEA),
            (&workspace as _, Type::TEXT),
            (&self.caller as _, Type::TEXT),
            (&self.entry as _, Type::TEXT),
            (&self.is_text as _, Type::BOOL),
        ];
        client.execute_typed(sql, &params).await?;
        Ok(())
    }
}

impl FleetContentStore {
    /// Stores a long result of `caller`, so that other servers can read it.
    pub(in crate::jobs) async fn store_result(
        &self,
        caller: &Caller,
        result: &SharedLongResult,
    ) -> Result<(), ContentSharingError> {
        let refused = |err: JobStoreError| ContentSharingError::Refused(err.to_string());
        let bytes = result.content.len() as u64;
        let row = SharedContentRow {
            id: content_id(&self.workspace, &["result", &result.spec.uri]),
            job: None,
            bytes,
            result: Some(SharedResultRow {
                caller: caller.name.to_string(),
                entry: to_json(&result.spec).map_err(refused)?,
                is_text: result.is_text,
                keep: result.keep,
            }),
        };
        self.store(&row, &SharedContent::Bytes(&result.content)).await?;
        let added = bytes + OVERHEAD_BYTES;
        let stored = self.new_result_bytes.fetch_add(added, Ordering::Relaxed) + added;
        if stored >= CHECK_BYTES {
            self.new_result_bytes.store(0, Ordering::Relaxed);
            let lent = self.pool.acquire().await?;
            let work =
                expire_oldest_results(&lent.connection.client, &self.workspace, RESULT_BYTES_MAX);
            let expired = self.pool.with_timeout(self.pool.query_timeout, work).await;
            lent.give_back(expired)?;
        }
        Ok(())
    }

    /// Returns the long result of `caller` with the URI `uri`.
    pub(in crate::jobs) async fn find_result(
        &self,
        caller: &Caller,
        uri: &str,
    ) -> Result<Option<SharedLongResult>, JobStoreError> {
        let id = content_id(&self.workspace, &["result", uri]);
        let lent = self.pool.acquire().await?;
        let work = find_result(&lent.connection.client, &self.workspace, &caller.name, id);
        let found = self.pool.with_timeout(self.pool.query_timeout, work).await;
        let Some(found) = lent.give_back(found)? else { return Ok(None) };
        let Some(content) = self.read(&found.place).await? else { return Ok(None) };
        Ok(Some(SharedLongResult {
            spec: parse_json(&found.entry)?,
            content: content.into(),
            is_text: found.is_text,
            keep: Duration::try_from_secs_f64(found.left).unwrap_or_default(),
        }))
    }

    /// Returns the list entries of the long results of `caller`.
    pub(in crate::jobs) async fn list_results(
        &self,
        caller: &Caller,
    ) -> Result<Vec<ResourceSpec>, JobStoreError> {
        let lent = self.pool.acquire().await?;
        let work = list_entries(&lent.connection.client, &self.workspace, &caller.name);
        let listed = self.pool.with_timeout(self.pool.query_timeout, work).await;
        lent.give_back(listed)?.iter().map(|entry| parse_json(entry)).collect()
    }
}

async fn find_result(
    client: &Client,
    workspace: &str,
    caller: &str,
    id: SharedContentId,
) -> Result<Option<LocatedSharedResult>, PostgresError> {
    let sql = "SELECT file.bytes, file.is_large, result.entry, result.is_text, \
               extract(epoch FROM file.until - now())::float8 \
               FROM toolgate_fleet.files AS file \
               JOIN toolgate_fleet.results AS result ON result.file = file.id \
               WHERE file.id = $1 AND result.workspace = $2 AND result.caller = $3 \
               AND file.is_complete AND file.until > now()";
    let key = id.as_slice();
    let params =
        [(&key as _, Type::BYTEA), (&workspace as _, Type::TEXT), (&caller as _, Type::TEXT)];
    let Some(row) = client.query_typed_opt(sql, &params).await? else { return Ok(None) };
    let bytes: i64 = row.try_get(0)?;
    let place =
        SharedContentLocation { id, bytes: bytes.unsigned_abs(), is_large: row.try_get(1)? };
    let (entry, is_text, left) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
    Ok(Some(LocatedSharedResult { place, entry, is_text, left }))
}

async fn list_entries(
    client: &Client,
    workspace: &str,
    caller: &str,
) -> Result<Vec<String>, PostgresError> {
    let sql = "SELECT result.entry FROM toolgate_fleet.results AS result \
               JOIN toolgate_fleet.files AS file ON file.id = result.file \
               WHERE result.workspace = $1 AND result.caller = $2 \
               AND file.is_complete AND file.until > now() ORDER BY file.until LIMIT $3";
    let params =
        [(&workspace as _, Type::TEXT), (&caller as _, Type::TEXT), (&LISTED_MAX as _, Type::INT8)];
    let rows = client.query_typed(sql, &params).await?;
    let entries = rows.iter().map(|row| Ok::<String, PostgresError>(row.try_get(0)?));
    entries.collect()
}

/// Marks the oldest results of the workspace as expired until all others have at most `bytes_max`
/// bytes in total.
pub(super) async fn expire_oldest_results(
    client: &Client,
    workspace: &str,
    bytes_max: i64,
) -> Result<(), PostgresError> {
    let sql = "UPDATE toolgate_fleet.files SET until = now() WHERE id IN \
               (SELECT id FROM (SELECT id, sum(bytes + $3) OVER (ORDER BY until DESC, id) AS total \
               FROM toolgate_fleet.files WHERE workspace = $1 AND job IS NULL AND until > now()) \
               AS newest WHERE total > $2)";
    let overhead = i64::try_from(OVERHEAD_BYTES).unwrap_or(0);
    let params = [
        (&workspace as _, Type::TEXT),
        (&bytes_max as _, Type::INT8),
        (&overhead as _, Type::INT8),
    ];
    client.execute_typed(sql, &params).await?;
    Ok(())
}
