//! Writes into an index at Qdrant: gathered until it is committed, or until it is much.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use qdrant_client::Qdrant;
use qdrant_client::qdrant::{
    Condition, DeletePointsBuilder, Filter as Where, GetPointsBuilder, NamedVectors, PointId,
    PointStruct, PointVectors, PointsIdsList, ScrollPointsBuilder, UpdatePointVectorsBuilder,
    UpsertPointsBuilder, Vector, Vectors as Both, VectorsSelector, vectors,
};
use tokio::task::spawn_blocking;
use toolgate_search::{ChunkHash, Filter, Space};

use super::super::{Doing, EngineError, Put, Writer};
use super::find::{counted, included, only, scrolled};
use super::points::{self, MODEL, Row, Sums};
use super::trouble::Trouble;
use super::{PAGE, Shared, WRITE_WITHIN};

/// So many chunks are gathered before they are written, committed or not: Qdrant has no
/// transactions, so nothing is won by holding more.
const GATHERED_MAX: usize = 2_000;
/// So many points go in one request.
const SENT_AT_ONCE: usize = 256;
/// So often it is written before the sums are added up anew, which others may write too.
const SUMMED_EVERY: u32 = 64;
/// After so many vectors were left over, it is looked whether they are too many.
const LEFT_OVER: usize = 1_000;

/// Gathers what is to be written.
pub(super) struct QdrantWriter {
    shared: Arc<Shared>,
    collection: String,
    /// In which collection and for which namespace documents are kept, where they are.
    keeps: Option<(String, String)>,
    model: Option<Space>,
    /// By path what is there from now on.
    gathered: BTreeMap<String, Option<Arc<Put>>>,
    given: HashMap<ChunkHash, Vec<f32>>,
    /// How often it is written until the sums are added up: at once at first, and where something
    /// may be half done.
    until_summed: u32,
    /// How many vectors were left over since it was last looked.
    left: usize,
}

impl QdrantWriter {
    pub(super) fn new(
        shared: Arc<Shared>,
        collection: String,
        keeps: Option<(String, String)>,
        model: Option<Space>,
    ) -> Self {
        let (gathered, given) = (BTreeMap::new(), HashMap::new());
        Self { shared, collection, keeps, model, gathered, given, until_summed: 0, left: 0 }
    }

    async fn flush_if_much(&mut self) -> Result<(), EngineError> {
        let chunks = |put: &Option<Arc<Put>>| put.as_ref().map_or(1, |put| 1 + put.chunks.len());
        let gathered: usize = self.gathered.values().map(chunks).sum();
        if gathered + self.given.len() < GATHERED_MAX {
            return Ok(());
        }
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), EngineError> {
        if self.gathered.is_empty() && self.given.is_empty() {
            return Ok(());
        }
        let (shared, before) = (self.shared.clone(), self.until_summed);
        let writes_documents = !self.gathered.is_empty();
        self.until_summed = 0;
        // Given up or failed, it is all written again.
        self.left += shared.within(WRITE_WITHIN, self.written(before == 0)).await?;
        self.until_summed = match before {
            _ if !writes_documents => before,
            0 => SUMMED_EVERY,
            more => more - 1,
        };
        self.gathered.clear();
        self.given.clear();
        if self.left >= LEFT_OVER {
            shared.within(WRITE_WITHIN, self.drop_left_over()).await?;
            self.left = 0;
        }
        Ok(())
    }

    /// Writes what was gathered; gives how many vectors it has left over.
    async fn written(&self, sum: bool) -> Result<usize, Trouble> {
        let mut left = 0;
        if !self.gathered.is_empty() {
            left = self.write_documents(sum).await?;
        }
        self.give_vectors().await?;
        Ok(left)
    }

    async fn write_documents(&self, sum: bool) -> Result<usize, Trouble> {
        let Self { collection, gathered, .. } = self;
        let client = &self.shared.client;
        let rows = rows(gathered.values().flatten().cloned().collect()).await?;
        // What says the same keeps the vector it has.
        let vectors = self.known_vectors(&rows).await?;
        let mut sums = self.untold().await?;
        let mut to_send: Vec<PointStruct> = Vec::new();
        let mut ids: Vec<PointId> = Vec::new();
        let mut told: Vec<PointStruct> = Vec::new();
        for (put, rows) in rows {
            let mut of_document = Sums::default();
            for row in rows {
                of_document.add(Sums { chunks: 1, lengths: row.lengths }, 1);
                ids.push(row.id);
                to_send.push(with_vector(row.point, vectors.get(&row.hash)));
            }
            sums.add(of_document, 1);
            told.push(points::document(&put, of_document));
        }
        // What is new is there before what is old goes: a document is never missing meanwhile.
        upsert(client, collection, to_send).await?;
        let left = self.take_out(ids).await?;
        if let Some((kept_in, namespace)) = &self.keeps {
            self.keep(kept_in, namespace).await?;
        }
        // And of one that goes until nothing else is there: else nobody would take out the rest.
        self.forget(|put| put.is_none()).await?;
        // A document is told of once all else is there.
        upsert(client, collection, told).await?;
        if sum {
            sums = self.summed().await?;
        }
        upsert(client, collection, vec![sums.point()]).await?;
        Ok(left)
    }

    /// What all documents have in sum.
    async fn summed(&self) -> Result<Sums, Trouble> {
        let of_kind = Where::must([Condition::matches("kind", "document".to_owned())]);
        let fields = ["chunks", "lengths"];
        let found =
            scrolled(&self.shared.client, &self.collection, of_kind, &fields, usize::MAX).await?;
        let mut sums = Sums::default();
        for point in found {
            sums.add(Sums::of(&point.payload), 1);
        }
        Ok(sums)
    }

    /// Tells of the documents that are put no more until they are whole; gives what all but those
    /// at the paths have in sum.
    async fn untold(&self) -> Result<Sums, Trouble> {
        let Self { collection, gathered, .. } = self;
        let client = &self.shared.client;
        let mut ids: Vec<PointId> =
            gathered.keys().map(|path| points::document_id(path).into()).collect();
        ids.push(Sums::id());
        let get = GetPointsBuilder::new(collection, ids).with_payload(true);
        let mut sums = Sums::default();
        for point in client.get_points(get).await?.result {
            let is_all = point.id == Some(Sums::id());
            sums.add(Sums::of(&point.payload), if is_all { 1 } else { -1 });
        }
        self.forget(|put| put.is_some()).await?;
        Ok(sums)
    }

    /// Takes out the points of those documents themselves that are `which`.
    async fn forget(&self, which: impl Fn(&Option<Arc<Put>>) -> bool) -> Result<(), Trouble> {
        let of_those = self.gathered.iter().filter(|(_, put)| which(put));
        let ids: Vec<PointId> =
            of_those.map(|(path, _)| points::document_id(path).into()).collect();
        if !ids.is_empty() {
            let points = PointsIdsList { ids };
            let delete = DeletePointsBuilder::new(&self.collection).points(points).wait(true);
            self.shared.client.delete_points(delete).await?;
        }
        Ok(())
    }

    /// Takes out the chunks at the paths but for those `but`, leaving the model's vectors behind;
    /// gives how many.
    async fn take_out(&self, but: Vec<PointId>) -> Result<usize, Trouble> {
        let Self { collection, gathered, .. } = self;
        let client = &self.shared.client;
        let paths: Vec<String> = gathered.keys().cloned().collect();
        let mut old = only(&Filter::default());
        old.must.push(Condition::matches("path", paths));
        if !but.is_empty() {
            old.must_not.push(Condition::has_id(but));
        }
        let mut left = 0;
        if self.model.is_some() {
            let mut with_vector = old.clone();
            with_vector.must.push(Condition::has_vector(MODEL));
            let mut vectors = self.vectors(with_vector, |_| true).await?;
            left = vectors.len();
            let points = vectors.drain().map(|(hash, vector)| points::left(hash, vector));
            upsert(client, collection, points.collect()).await?;
        }
        let delete = DeletePointsBuilder::new(collection).points(old).wait(true);
        client.delete_points(delete).await?;
        Ok(left)
    }

    /// Forgets the vectors of what is not said any more, where they are many more than those that
    /// are used: what was there before a branch was switched is wanted again.
    async fn drop_left_over(&self) -> Result<(), Trouble> {
        let (client, collection) = (&self.shared.client, &self.collection);
        let left = counted(client, collection, "left").await?;
        let chunks = counted(client, collection, "chunk").await?;
        if left > LEFT_OVER as u64 + 2 * chunks {
            let all = Where::must([Condition::matches("kind", "left".to_owned())]);
            let delete = DeletePointsBuilder::new(collection).points(all).wait(true);
            client.delete_points(delete).await?;
        }
        Ok(())
    }

    async fn keep(&self, kept_in: &str, namespace: &str) -> Result<(), Trouble> {
        let client = &self.shared.client;
        let points = self.gathered.values().flatten();
        let points = points.map(|put| points::kept(namespace, put)).collect();
        upsert(client, kept_in, points).await?;
        let gone = self.gathered.iter().filter(|(_, put)| put.is_none());
        let ids: Vec<PointId> = gone.map(|(path, _)| points::kept_id(namespace, path)).collect();
        if !ids.is_empty() {
            let delete = DeletePointsBuilder::new(kept_in).points(PointsIdsList { ids }).wait(true);
            client.delete_points(delete).await?;
        }
        Ok(())
    }

    /// The model's vectors of what says the same as `rows`.
    async fn known_vectors(
        &self,
        rows: &[(Arc<Put>, Vec<Row>)],
    ) -> Result<HashMap<ChunkHash, Vec<f32>>, Trouble> {
        let mut found = HashMap::new();
        if self.model.is_none() {
            return Ok(found);
        }
        let hashes: Vec<String> =
            rows.iter().flat_map(|(_, rows)| rows).map(|row| points::hex(row.hash)).collect();
        for some in hashes.chunks(SENT_AT_ONCE) {
            let mut wanted: HashSet<&String> = some.iter().collect();
            let same = Where::must([
                Condition::matches("hash", some.to_vec()),
                Condition::has_vector(MODEL),
            ]);
            let goes_on = |hash: ChunkHash| {
                wanted.remove(&points::hex(hash));
                !wanted.is_empty()
            };
            found.extend(self.vectors(same, goes_on).await?);
        }
        Ok(found)
    }

    /// The model's vectors of the points that are as `only` says, for as long as it `goes_on`.
    async fn vectors(
        &self,
        only: Where,
        mut goes_on: impl FnMut(ChunkHash) -> bool,
    ) -> Result<HashMap<ChunkHash, Vec<f32>>, Trouble> {
        let mut found = HashMap::new();
        let mut from: Option<PointId> = None;
        loop {
            let mut scroll = ScrollPointsBuilder::new(&self.collection)
                .filter(only.clone())
                .limit(PAGE)
                .with_payload(included(&["hash"]))
                .with_vectors(VectorsSelector { names: vec![MODEL.to_owned()] });
            if let Some(from) = from.take() {
                scroll = scroll.offset(from);
            }
            let page = self.shared.client.scroll(scroll).await?;
            let mut more = true;
            for point in page.result {
                let vector = points::dense(point.vectors.as_ref(), MODEL);
                if let Some((hash, vector)) = points::hash(&point.payload).zip(vector) {
                    more &= goes_on(hash);
                    found.insert(hash, vector);
                }
            }
            from = page.next_page_offset.filter(|_| more);
            if from.is_none() {
                return Ok(found);
            }
        }
    }

    async fn give_vectors(&self) -> Result<(), Trouble> {
        let given: Vec<(&ChunkHash, &Vec<f32>)> = self.given.iter().collect();
        for some in given.chunks(SENT_AT_ONCE) {
            let hashes: Vec<String> = some.iter().map(|(hash, _)| points::hex(**hash)).collect();
            let mut same = only(&Filter::default());
            same.must.push(Condition::matches("hash", hashes));
            let client = &self.shared.client;
            let found = scrolled(client, &self.collection, same, &["hash"], usize::MAX).await?;
            let points: Vec<PointVectors> = found
                .into_iter()
                .filter_map(|point| {
                    let vector = self.given.get(&points::hash(&point.payload)?)?;
                    let vectors =
                        NamedVectors::default().add_vector(MODEL, Vector::from(vector.clone()));
                    Some(PointVectors { id: point.id, vectors: Some(vectors.into()) })
                })
                .collect();
            if !points.is_empty() {
                let update = UpdatePointVectorsBuilder::new(&self.collection, points).wait(true);
                client.update_vectors(update).await?;
            }
        }
        Ok(())
    }
}

/// The rows of `documents`, made where thinking keeps nobody waiting.
async fn rows(documents: Vec<Arc<Put>>) -> Result<Vec<(Arc<Put>, Vec<Row>)>, Trouble> {
    let rows = |put: Arc<Put>| {
        let rows = put.chunks.iter().enumerate().map(|(at, chunk)| points::row(&put, at, chunk));
        (put.clone(), rows.collect())
    };
    let made = spawn_blocking(move || documents.into_iter().map(rows).collect()).await;
    made.map_err(|err| Trouble::Unfit(format!("was not asked: {err}")))
}

fn with_vector(mut point: PointStruct, vector: Option<&Vec<f32>>) -> PointStruct {
    let both = point.vectors.as_mut().and_then(|it: &mut Both| it.vectors_options.as_mut());
    if let (Some(vectors::VectorsOptions::Vectors(named)), Some(vector)) = (both, vector) {
        named.vectors.insert(MODEL.to_owned(), Vector::from(vector.clone()));
    }
    point
}

async fn upsert(
    client: &Qdrant,
    collection: &str,
    points: Vec<PointStruct>,
) -> Result<(), Trouble> {
    if points.is_empty() {
        return Ok(());
    }
    let upsert = UpsertPointsBuilder::new(collection, points).wait(true);
    client.upsert_points_chunked(upsert, SENT_AT_ONCE).await?;
    Ok(())
}

impl Writer for QdrantWriter {
    fn put(&mut self, documents: Vec<Put>) -> Doing<'_, ()> {
        Box::pin(async move {
            let documents = documents.into_iter();
            self.gathered.extend(documents.map(|put| (put.path.clone(), Some(Arc::new(put)))));
            self.flush_if_much().await
        })
    }

    fn remove(&mut self, paths: Vec<String>) -> Doing<'_, ()> {
        Box::pin(async move {
            self.gathered.extend(paths.into_iter().map(|path| (path, None)));
            self.flush_if_much().await
        })
    }

    fn commit(&mut self) -> Doing<'_, ()> {
        Box::pin(async move { self.flush().await })
    }

    fn give(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> Doing<'_, ()> {
        Box::pin(async move {
            let wanted = self.model.as_ref().map_or(0, |model| model.dimensions);
            for (_, vector) in &vectors {
                if vector.len() != wanted || !vector.iter().all(|it| it.is_finite()) {
                    return Err(EngineError::Failed(format!(
                        "a vector has {} numbers, which are to be {wanted} finite ones",
                        vector.len()
                    )));
                }
            }
            self.given.extend(vectors);
            self.flush_if_much().await
        })
    }
}
