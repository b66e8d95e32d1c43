//! Makes the collections of a namespace, and sees whether those that are there are ours.

use std::collections::BTreeMap;

use qdrant_client::qdrant::{
    CreateCollectionBuilder, CreateFieldIndexCollectionBuilder, Distance, FieldType,
    GetPointsBuilder, KeywordIndexParamsBuilder, SparseVectorParamsBuilder,
    SparseVectorsConfigBuilder, UpsertPointsBuilder, VectorParamsBuilder, VectorsConfigBuilder,
    vectors_config,
};
use qdrant_client::{Qdrant, QdrantError};
use toolgate_search::{Space, static_model};

use super::points::{self, MODEL, NEAR, WORDS};
use super::trouble::Trouble;

/// The oldest Qdrant that knows all that is asked of it: strings by how they begin.
const OLDEST: (u64, u64) = (1, 19);

/// The collections of a namespace.
pub(super) struct Collections<'e> {
    pub(super) client: &'e Qdrant,
    /// Of its chunks.
    pub(super) chunks: &'e str,
    /// Of its documents, where no file holds them; all namespaces of a workspace share it.
    pub(super) kept: Option<&'e str>,
    pub(super) model: Option<&'e Space>,
}

/// That the server is new enough.
pub(super) async fn check_version(client: &Qdrant) -> Result<(), Trouble> {
    let version = client.health_check().await?.version;
    let mut numbers = version.split('.').map(str::parse);
    // Whoever builds Qdrant themselves may call it what they like.
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Ok(());
    };
    if (major, minor) >= OLDEST {
        return Ok(());
    }
    let (major, minor) = OLDEST;
    Err(Trouble::Unfit(format!(
        "is version {version}, which is too old; {major}.{minor} or newer is needed"
    )))
}

impl Collections<'_> {
    /// Whether they are all there, whole and as they should be.
    pub(super) async fn are_whole(&self) -> Result<bool, Trouble> {
        if !self.client.collection_exists(self.chunks).await? {
            return Ok(false);
        }
        self.check_form().await?;
        if let Some(kept) = self.kept
            && !self.client.collection_exists(kept).await?
        {
            return Ok(false);
        }
        let get = GetPointsBuilder::new(self.chunks, vec![points::whole_id()]).with_payload(false);
        Ok(!self.client.get_points(get).await?.result.is_empty())
    }

    /// Makes what is not there yet. Another server may be doing the same.
    pub(super) async fn make(&self) -> Result<(), Trouble> {
        let mut vectors = VectorsConfigBuilder::default();
        for (name, size) in self.dense() {
            // All have length 1, so this is their cosine, and they come back as they went.
            vectors.add_named_vector_params(name, VectorParamsBuilder::new(size, Distance::Dot));
        }
        let mut sparse = SparseVectorsConfigBuilder::default();
        sparse.add_named_vector_params(WORDS, SparseVectorParamsBuilder::default());
        let create = CreateCollectionBuilder::new(self.chunks)
            .vectors_config(vectors)
            .sparse_vectors_config(sparse);
        self.create(self.chunks, create).await?;
        for (field, by_beginning) in [
            ("kind", false),
            ("path", true),
            ("folded", false),
            ("hash", false),
            ("words", false),
            ("symbols", true),
            ("named", false),
        ] {
            self.index(self.chunks, field, by_beginning).await?;
        }
        if let Some(kept) = self.kept {
            // Its points are never looked for by a vector, but a collection wants to have one.
            let none = VectorParamsBuilder::new(1, Distance::Dot);
            let create = CreateCollectionBuilder::new(kept).vectors_config(none);
            self.create(kept, create).await?;
            self.index(kept, "namespace", false).await?;
        }
        self.check_form().await
    }

    /// Says that all that belongs into them is there.
    pub(super) async fn are_whole_now(&self) -> Result<(), Trouble> {
        let upsert = UpsertPointsBuilder::new(self.chunks, vec![points::whole()]).wait(true);
        self.client.upsert_points(upsert).await?;
        Ok(())
    }

    async fn create(&self, name: &str, create: CreateCollectionBuilder) -> Result<(), QdrantError> {
        if self.client.collection_exists(name).await? {
            return Ok(());
        }
        match self.client.create_collection(create).await {
            Ok(_) => Ok(()),
            // By somebody else, meanwhile.
            Err(_) if self.client.collection_exists(name).await? => Ok(()),
            Err(err) => Err(err),
        }
    }

    async fn index(&self, name: &str, field: &str, by_beginning: bool) -> Result<(), QdrantError> {
        let params = KeywordIndexParamsBuilder::default().prefix(by_beginning);
        let index = CreateFieldIndexCollectionBuilder::new(name, field, FieldType::Keyword)
            .field_index_params(params.build())
            .wait(true);
        self.client.create_field_index(index).await?;
        Ok(())
    }

    /// The dense vectors that a chunk has, and how many numbers each.
    fn dense(&self) -> BTreeMap<String, u64> {
        let near = (NEAR.to_owned(), static_model::space().dimensions as u64);
        let model = self.model.map(|model| (MODEL.to_owned(), model.dimensions as u64));
        [near].into_iter().chain(model).collect()
    }

    /// That the collection of chunks takes the vectors that they have.
    async fn check_form(&self) -> Result<(), Trouble> {
        let found = self.client.collection_info(self.chunks).await?;
        let params = found.result.and_then(|it| it.config).and_then(|it| it.params);
        let has: BTreeMap<String, u64> = match params
            .and_then(|it| it.vectors_config)
            .and_then(|it| it.config)
        {
            Some(vectors_config::Config::ParamsMap(map)) => {
                map.map.into_iter().map(|(name, params)| (name, params.size)).collect()
            }
            Some(vectors_config::Config::Params(params)) => [(String::new(), params.size)].into(),
            None => BTreeMap::new(),
        };
        let wanted = self.dense();
        if has == wanted {
            return Ok(());
        }
        Err(Trouble::Unfit(format!(
            "has a collection `{}` for vectors {}, which are to be {}; delete it there, or set \
             `workspace` to another name",
            self.chunks,
            said(&has),
            said(&wanted)
        )))
    }
}

fn said(vectors: &BTreeMap<String, u64>) -> String {
    let said: Vec<String> =
        vectors.iter().map(|(name, size)| format!("`{name}` of {size} numbers")).collect();
    if said.is_empty() { "of no kind".to_owned() } else { said.join(" and ") }
}
