//! Finds chunks in PostgreSQL by words, by vectors and by name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, IsolationLevel, Row};
use toolgate_chunks::words::concepts;
use toolgate_search::index::{NameQuery, NamedDefinition};
use toolgate_search::rank::{
    ChunkCandidate, ChunkField, ChunkTexts, IndexStatistics, WeightedQuery, bm25f, count_words,
};
use toolgate_search::{ChunkHash, ChunkSummary, DocumentFilter};

use super::super::{
    SearchEngineQuery, SearchEngineStatus, StoredDocumentVersion, UnembeddedEngineChunk,
    VectorOrigin,
};
use super::error::PostgresError;
use super::rows;
use super::tables::{NamespaceTables, VectorTable};
use super::upkeep::built_condition;

/// The maximum number of chunks, in total, that a search looks up by the words of the query. The
/// rarest words are looked up first. More frequent words only count in chunks that contain a rarer
/// word.
const WORD_CHUNKS_MAX: u64 = 30_000;
/// The factor by which more chunks are searched by words than requested, because the database only
/// estimates the weights of words.
const OVERFETCH_FACTOR: usize = 3;
/// The maximum number of definitions that are read for each method of comparing names, such as by
/// prefix.
const DEFINITIONS_MAX: i64 = 2_000;

/// The maximum number of chunks that are added because the query contains a name they define, or
/// the name of their file.
const LITERAL_CHUNKS_MAX: usize = 100;

/// The candidates that a search in PostgreSQL found.
pub(super) struct PostgresSearchCandidates {
    pub(super) question: Option<WeightedQuery>,
    pub(super) averages: IndexStatistics,
    pub(super) candidates: Vec<ChunkCandidate>,
}

/// A parameter of an SQL query and its type.
type SqlQueryParam<'g> = (&'g (dyn ToSql + Sync), Type);

pub(super) async fn candidates(
    client: &mut Client,
    tables: &NamespaceTables,
    query: &SearchEngineQuery,
) -> Result<PostgresSearchCandidates, PostgresError> {
    let work = client.build_transaction();
    let work = work.isolation_level(IsolationLevel::RepeatableRead).read_only(true).start().await?;
    let (averages, approximate) = index_stats(&work, tables).await?;
    let question = match &query.query {
        Some(query) => Some(analyze_query(&work, tables, query, averages.chunks).await?),
        None => None,
    };
    let mut by_words = HashSet::new();
    if let Some(question) = &question {
        by_words.extend(find_by_words(&work, tables, question, &averages, query).await?);
    }
    let mut ids: HashSet<i64> = by_words.clone();
    let mut by_vectors = HashSet::new();
    let spaces =
        [(Some(&tables.near), &query.static_vector), (tables.model.as_ref(), &query.model_vector)];
    for ((space, vector), approximate) in spaces.into_iter().zip(approximate) {
        let (Some(space), Some(vector)) = (space, vector) else { continue };
        if vector.len() != space.dimensions {
            return Err(PostgresError::Rejected(format!(
                "the vector has {} numbers; vectors of this index have {}",
                vector.len(),
                space.dimensions
            )));
        }
        by_vectors.extend(nearest(&work, tables, space, vector, query, approximate).await?);
    }
    ids.extend(&by_vectors);
    let mut kept = by_vectors;
    if let Some(question) = &question {
        kept.extend(find_literals(&work, tables, question, query).await?);
        ids.extend(&kept);
    }
    let mut ids: Vec<i64> = ids.into_iter().collect();
    ids.sort_unstable();
    let empty = WeightedQuery::new("", 0, |_| 0);
    let question_or_empty = question.as_ref().unwrap_or(&empty);
    let mut candidates = read_candidates(&work, tables, query, &ids, question_or_empty).await?;
    work.commit().await?;
    if let Some(question) = &question {
        keep_best(&mut candidates, question, &averages, &kept, query.limit);
    }
    Ok(PostgresSearchCandidates { question, averages, candidates })
}

/// Keeps the `limit` candidates with the highest word scores, and all candidates with an id in
/// `kept`.
fn keep_best(
    candidates: &mut Vec<ChunkCandidate>,
    question: &WeightedQuery,
    averages: &IndexStatistics,
    kept: &HashSet<i64>,
    limit: usize,
) {
    let score = |it: &ChunkCandidate| bm25f::score(question, averages, &it.counts, &it.lengths);
    let mut scores: Vec<f32> = candidates.iter().map(score).collect();
    scores.sort_unstable_by(|a, b| b.total_cmp(a));
    let score_min = scores.get(limit.saturating_sub(1)).copied().unwrap_or(0.0);
    candidates.retain(|it| score(it) >= score_min || kept.contains(&it.key.cast_signed()));
}

/// Returns the statistics of the index. Also returns, for each of the two vector spaces, true if
/// its approximate index can be used. Fails if the database fails.
async fn index_stats(
    client: &impl GenericClient,
    tables: &NamespaceTables,
) -> Result<(IndexStatistics, [bool; 2]), PostgresError> {
    let sql = format!(
        "select chunks, lengths, {}, {} from toolgate_search.namespaces where id = $1",
        built_condition(tables, Some(&tables.near)),
        built_condition(tables, tables.model.as_ref())
    );
    let row = client.query_typed_opt(&sql, &[(&tables.namespace, Type::INT4)]).await?;
    let row = row.ok_or_else(missing_index_error)?;
    let (chunks, sums): (i64, Vec<i64>) = (row.get(0), row.get(1));
    let mut averages =
        IndexStatistics { chunks: chunks.max(0).cast_unsigned(), ..IndexStatistics::default() };
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an average")]
    for (average, sum) in averages.lengths.iter_mut().zip(sums) {
        *average = (sum as f64 / chunks.max(1) as f64) as f32;
    }
    Ok((averages, [row.get(2), row.get(3)]))
}

fn missing_index_error() -> PostgresError {
    let message = "no longer has the search index of this workspace; try again";
    PostgresError::Unusable(message.to_owned())
}

async fn analyze_query(
    client: &impl GenericClient,
    tables: &NamespaceTables,
    query: &str,
    chunks: u64,
) -> Result<WeightedQuery, PostgresError> {
    let words: Vec<String> = concepts(query).into_iter().map(|it| it.word).collect();
    let sql = format!("select word, holding from {} where word = any($1)", tables.table("words"));
    let rows = client.query_typed(&sql, &[(&words, Type::TEXT_ARRAY)]).await?;
    let holding =
        |row: &Row| (row.get::<_, String>(0), row.get::<_, i64>(1).max(0).cast_unsigned());
    let holding: HashMap<String, u64> = rows.iter().map(holding).collect();
    Ok(WeightedQuery::new(query, chunks, |word| holding.get(word).copied().unwrap_or_default()))
}

/// Returns the ids of the chunks that match the query's words best, by estimated weights. Fails if
/// the database fails.
async fn find_by_words(
    client: &impl GenericClient,
    tables: &NamespaceTables,
    question: &WeightedQuery,
    averages: &IndexStatistics,
    query: &SearchEngineQuery,
) -> Result<Vec<i64>, PostgresError> {
    let words: Vec<&str> = question.concepts.iter().map(|it| it.word.as_str()).collect();
    let sql = format!("select word, holding from {} where word = any($1)", tables.table("words"));
    let mut frequencies: Vec<(i64, String)> = client
        .query_typed(&sql, &[(&words, Type::TEXT_ARRAY)])
        .await?
        .iter()
        .map(|row| (row.get(1), row.get(0)))
        .collect();
    frequencies.sort_unstable();
    let mut total = 0;
    let mut search_words: Vec<String> = Vec::new();
    for (holding, word) in &frequencies {
        total += holding.max(&0).cast_unsigned();
        if search_words.is_empty() || total <= WORD_CHUNKS_MAX {
            search_words.push(rows::quote_word(word));
        }
    }
    if search_words.is_empty() {
        return Ok(Vec::new());
    }
    let search_words = search_words.join(" | ");
    let limit = sql_limit(query.limit * OVERFETCH_FACTOR);
    let (prefixes, tags) = filter_params(&query.filter);
    let mut params: Vec<SqlQueryParam<'_>> = vec![
        (&search_words, Type::TEXT),
        (&limit, Type::INT8),
        (&prefixes, Type::TEXT_ARRAY),
        (&tags, Type::TEXT_ARRAY),
    ];
    let known: HashSet<&str> = frequencies.iter().map(|(_, word)| word.as_str()).collect();
    let weighed: Vec<(String, f32)> = question
        .concepts
        .iter()
        .filter(|it| known.contains(it.word.as_str()))
        .map(|it| (rows::quote_word(&it.word), it.rarity))
        .collect();
    let mut counts = String::new();
    let mut score = String::new();
    for (at, (word, rarity)) in weighed.iter().enumerate() {
        params.push((word, Type::TEXT));
        let parameter = params.len();
        // A word in the body counts 1, in a name 3. Repetitions count less and less.
        let _ = write!(
            counts,
            "{}4.934802 * ts_rank('{{0.333333,0.333333,0.5,1}}', c.words, ${parameter}::text::tsquery) as n{at}",
            if at == 0 { "" } else { ", " }
        );
        let _ = write!(
            score,
            "{}{rarity:e}::float8 * n{at} / (n{at} + {:e} * (0.4 + 0.6 * c.lengths[6] / {:e}))",
            if at == 0 { "" } else { " + " },
            bm25f::K1,
            averages.lengths[ChunkField::Body as usize].max(1.0)
        );
    }
    let sql = format!(
        "select c.id from {} c {}
        cross join lateral (select {counts} offset 0) n
        where c.words @@ $1::text::tsquery {}
        order by {score} desc, c.id limit $2",
        tables.table("chunks"),
        filter_join(tables, &query.filter),
        filter_condition(&query.filter)
    );
    Ok(client.query_typed(&sql, &params).await?.iter().map(|row| row.get(0)).collect())
}

/// Returns the ids of chunks that define a name in the query, and of chunks in files that the query
/// names. Fails if the database fails.
async fn find_literals(
    client: &impl GenericClient,
    tables: &NamespaceTables,
    question: &WeightedQuery,
    query: &SearchEngineQuery,
) -> Result<Vec<i64>, PostgresError> {
    let literals = &question.literals;
    if literals.is_empty() {
        return Ok(Vec::new());
    }
    let symbols: Vec<String> = literals.symbols().map(|it| rows::symbol_key(&it)).collect();
    let paths: Vec<String> =
        literals.paths.iter().map(|it| rows::without_nul(&it.path).into_owned()).collect();
    let (prefixes, tags) = filter_params(&query.filter);
    let params: [SqlQueryParam<'_>; 4] = [
        (&symbols, Type::TEXT_ARRAY),
        (&paths, Type::TEXT_ARRAY),
        (&prefixes, Type::TEXT_ARRAY),
        (&tags, Type::TEXT_ARRAY),
    ];
    let (chunks, documents) = (tables.table("chunks"), tables.table("documents"));
    let sql = format!(
        "(select c.id from {} n join {chunks} c on c.id = n.chunk
            join {documents} d on d.id = c.document
            where n.symbol = any($1) {FILTER_CONDITION} limit {LITERAL_CHUNKS_MAX})
        union
        (select c.id from {documents} d join {chunks} c on c.document = d.id
            where exists (select from unnest($2::text[]) p
                where d.path = p or right(d.path, length(p) + 1) = '/' || p)
            {FILTER_CONDITION} limit {LITERAL_CHUNKS_MAX})",
        tables.table("names"),
    );
    Ok(client.query_typed(&sql, &params).await?.iter().map(|row| row.get(0)).collect())
}

/// Returns the ids of the chunks whose vectors in `space` are nearest to `vector`. Uses the
/// approximate index if `approximate` is true. Fails if the database fails.
async fn nearest(
    client: &impl GenericClient,
    tables: &NamespaceTables,
    space: &VectorTable,
    vector: &[f32],
    query: &SearchEngineQuery,
    approximate: bool,
) -> Result<Vec<i64>, PostgresError> {
    let limit = sql_limit(query.limit);
    let chunks = tables.table("chunks");
    let vectors = tables.vector_table(space);
    let distance =
        format!("v.vector {} $1::real[]::{}", tables.distance_operator(), tables.vector_type());
    let no_filter = DocumentFilter::default();
    if approximate && query.filter == no_filter {
        let ef_search = (2 * limit).clamp(100, 1_000);
        client.batch_execute(&format!("set local hnsw.ef_search = {ef_search}")).await?;
        let sql = format!(
            "with near as materialized (
                select hash, {distance} as distance from {vectors} v order by {distance} limit {ef_search}
            )
            select c.id from near join {chunks} c using (hash) order by distance, c.id limit $2"
        );
        let params: [SqlQueryParam<'_>; 2] = [(&vector, Type::FLOAT4_ARRAY), (&limit, Type::INT8)];
        let found = client.query_typed(&sql, &params).await?;
        if found.len() >= query.limit {
            return Ok(found.iter().map(|row| row.get(0)).collect());
        }
    }
    let (prefixes, tags) = filter_params(&query.filter);
    let params: [SqlQueryParam<'_>; 4] = [
        (&vector, Type::FLOAT4_ARRAY),
        (&limit, Type::INT8),
        (&prefixes, Type::TEXT_ARRAY),
        (&tags, Type::TEXT_ARRAY),
    ];
    // Adding 0 keeps PostgreSQL from using the approximate index.
    let sql = format!(
        "select c.id from {chunks} c {} join {vectors} v on v.hash = c.hash
        where true {} order by ({distance}) + 0, c.id limit $2",
        filter_join(tables, &query.filter),
        filter_condition(&query.filter)
    );
    Ok(client.query_typed(&sql, &params).await?.iter().map(|row| row.get(0)).collect())
}

/// The SQL condition for the filter on documents, which uses the query parameters 3 and 4.
const FILTER_CONDITION: &str = "and (cardinality($3::text[]) = 0
        or exists (select from unnest($3::text[]) p where d.path = p or starts_with(
            d.path, case when p = '' or right(p, 1) = '/' then p else p || '/' end)))
    and d.folded @> $4::text[]";

/// Returns the SQL join that [`FILTER_CONDITION`] needs. Empty if `filter` accepts all documents.
fn filter_join(tables: &NamespaceTables, filter: &DocumentFilter) -> String {
    if *filter == DocumentFilter::default() {
        return String::new();
    }
    format!("join {} d on d.id = c.document", tables.table("documents"))
}

fn filter_condition(filter: &DocumentFilter) -> &'static str {
    if *filter == DocumentFilter::default() { "" } else { FILTER_CONDITION }
}

/// Returns the values of the query parameters 3 and 4 for [`FILTER_CONDITION`].
fn filter_params(filter: &DocumentFilter) -> (Vec<String>, Vec<String>) {
    let prefixes = filter.prefixes.iter().map(|it| rows::without_nul(it).into_owned()).collect();
    let tags = filter.tags.iter().map(|it| rows::without_nul(it).to_ascii_lowercase()).collect();
    (prefixes, tags)
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The columns of the tables chunks `c` and documents `d` that [`read_summary`] reads.
const SUMMARY_COLUMNS: &str = "c.id, d.path, c.first, c.last, c.kind, c.names, c.within, c.head,
    d.lang, d.tags, d.etag, d.committed";

fn read_summary(row: &Row) -> ChunkSummary {
    let line = |at: usize| row.get::<_, i32>(at).max(0).cast_unsigned();
    ChunkSummary {
        path: row.get(1),
        first: line(2),
        last: line(3),
        kind: rows::chunk_kind(row.get(4)),
        names: row.get(5),
        within: row.get(6),
        head: row.get(7),
        lang: row.get(8),
        tags: row.get(9),
        etag: row.get(10),
        commit: row.get(11),
    }
}

/// Reads the chunks `ids` from the index and counts the query's words in them. Fails if the
/// database fails.
async fn read_candidates(
    client: &impl GenericClient,
    tables: &NamespaceTables,
    query: &SearchEngineQuery,
    ids: &[i64],
    question: &WeightedQuery,
) -> Result<Vec<ChunkCandidate>, PostgresError> {
    let mut params: Vec<SqlQueryParam<'_>> = vec![(&ids, Type::INT8_ARRAY)];
    let empty: Vec<f32> = Vec::new();
    let near = query.static_vector.as_ref();
    let model = query.model_vector.as_ref().filter(|_| tables.model.is_some());
    params.push((near.unwrap_or(&empty), Type::FLOAT4_ARRAY));
    params.push((model.unwrap_or(&empty), Type::FLOAT4_ARRAY));
    let cosine = |is_wanted: bool, of: &str, parameter: usize| {
        if !is_wanted {
            return format!("null::float8 cosine_{of}");
        }
        format!(
            "-({of}.vector {} ${parameter}::real[]::{}) cosine_{of}",
            tables.distance_operator(),
            tables.vector_type()
        )
    };
    let model_table = tables
        .model
        .as_ref()
        .map_or_else(|| tables.vector_table(&tables.near), |space| tables.vector_table(space));
    let sql = format!(
        "select {SUMMARY_COLUMNS}, c.texts, {}, {}
        from {} c join {} d on d.id = c.document
        left join {} near on near.hash = c.hash
        left join {model_table} model on model.hash = c.hash
        where c.id = any($1) and $2::real[] is not null and $3::real[] is not null",
        cosine(near.is_some(), "near", 2),
        cosine(model.is_some(), "model", 3),
        tables.table("chunks"),
        tables.table("documents"),
        tables.vector_table(&tables.near),
    );
    let rows = client.query_typed(&sql, &params).await?;
    Ok(rows.iter().map(|row| read_candidate(row, question)).collect())
}

#[allow(clippy::cast_possible_truncation, reason = "the vectors are f32, too")]
fn read_candidate(row: &Row, question: &WeightedQuery) -> ChunkCandidate {
    let texts: Vec<&str> = row.get(12);
    let texts: ChunkTexts<'_> =
        std::array::from_fn(|at| texts.get(at).copied().unwrap_or_default());
    let (counts, lengths) = count_words(question, &texts);
    let cosine = |at: usize| row.get::<_, Option<f64>>(at).map(|it| it as f32);
    ChunkCandidate {
        key: row.get::<_, i64>(0).cast_unsigned(),
        counts,
        lengths,
        static_cosine: cosine(13).unwrap_or_default(),
        model_cosine: cosine(14),
        summary: read_summary(row),
    }
}

/// Returns the vectors of the chunks with the ids `keys`, in order. `by` selects the model that
/// computed the vectors. A chunk without a vector gives `None`. Fails if the database fails.
pub(super) async fn vectors(
    client: &Client,
    tables: &NamespaceTables,
    keys: &[u64],
    by: VectorOrigin,
) -> Result<Vec<Option<Vec<f32>>>, PostgresError> {
    let space = match by {
        VectorOrigin::Static => Some(&tables.near),
        VectorOrigin::Model => tables.model.as_ref(),
    };
    let Some(space) = space else { return Ok(vec![None; keys.len()]) };
    let ids: Vec<i64> = keys.iter().map(|key| key.cast_signed()).collect();
    let sql = format!(
        "select c.id, v.vector::real[] from {} c join {} v on v.hash = c.hash where c.id = any($1)",
        tables.table("chunks"),
        tables.vector_table(space)
    );
    let rows = client.query_typed(&sql, &[(&ids, Type::INT8_ARRAY)]).await?;
    let mut found: HashMap<i64, Vec<f32>> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    Ok(ids.iter().map(|id| found.remove(id)).collect())
}

pub(super) async fn documents(
    client: &Client,
    tables: &NamespaceTables,
) -> Result<BTreeMap<String, StoredDocumentVersion>, PostgresError> {
    let sql = format!("select path, stamp, etag from {}", tables.table("documents"));
    let rows = client.query_typed(&sql, &[]).await?;
    let version =
        |row: &Row| (row.get(0), StoredDocumentVersion { stamp: row.get(1), etag: row.get(2) });
    Ok(rows.iter().map(version).collect())
}

pub(super) async fn status(
    client: &Client,
    tables: &NamespaceTables,
) -> Result<SearchEngineStatus, PostgresError> {
    let with_vectors = tables.model.as_ref().map_or_else(
        || "0::bigint".to_owned(),
        |space| {
            let chunks = tables.table("chunks");
            let vectors = tables.vector_table(space);
            format!("(select count(*) from {chunks} c join {vectors} v on v.hash = c.hash)")
        },
    );
    let mut names: Vec<String> =
        ["documents", "chunks", "names", "words"].iter().map(|name| tables.table(name)).collect();
    names.push(tables.vector_table(&tables.near));
    names.extend(tables.model.as_ref().map(|space| tables.vector_table(space)));
    let sizes: Vec<String> =
        names.iter().map(|name| format!("pg_total_relation_size('{name}')")).collect();
    let sql = format!(
        "select (select count(*) from {}), (select count(*) from {}), {with_vectors}, {}",
        names[0],
        names[1],
        sizes.join(" + ")
    );
    let row = client.query_typed_one(&sql, &[]).await?;
    let number = |at: usize| row.get::<_, i64>(at).max(0).cast_unsigned();
    Ok(SearchEngineStatus {
        documents: number(0),
        chunks: number(1),
        with_vectors: number(2),
        bytes: Some(number(3)),
    })
}

pub(super) async fn pending_chunks(
    client: &Client,
    tables: &NamespaceTables,
    limit: usize,
) -> Result<Vec<UnembeddedEngineChunk>, PostgresError> {
    let Some(space) = &tables.model else { return Ok(Vec::new()) };
    let sql = format!(
        "select c.hash, d.path, c.first, c.last
        from {} c join {} d on d.id = c.document
        where not exists (select from {} v where v.hash = c.hash)
        order by c.id desc limit $1",
        tables.table("chunks"),
        tables.table("documents"),
        tables.vector_table(space)
    );
    let rows = client.query_typed(&sql, &[(&sql_limit(limit), Type::INT8)]).await?;
    let mut seen = HashSet::new();
    let line = |row: &Row, at: usize| row.get::<_, i32>(at).max(0).cast_unsigned();
    let read = |row: &Row| UnembeddedEngineChunk {
        hash: ChunkHash(row.get::<_, i64>(0).cast_unsigned()),
        path: row.get(1),
        first: line(row, 2),
        last: line(row, 3),
    };
    Ok(rows.iter().map(read).filter(|it| seen.insert(it.hash)).collect())
}

pub(super) async fn find_definitions(
    client: &Client,
    tables: &NamespaceTables,
    name: &str,
    filter: &DocumentFilter,
    limit: usize,
) -> Result<Vec<NamedDefinition>, PostgresError> {
    let Some(name_query) = NameQuery::parse(name) else { return Ok(Vec::new()) };
    let names = tables.table("names");
    let mut symbols: Vec<String> = Vec::new();
    if name_query.edits_max() > 0 {
        // The lengths differ at most by the number of edits, with slack for letters of several
        // bytes.
        let sql = format!(
            "select distinct symbol from {names}
            where length(symbol) between length($1) - 2 and length($1) + 2"
        );
        let symbol = name_query.symbol();
        let params: [SqlQueryParam<'_>; 1] = [(&symbol, Type::TEXT)];
        let rows = client.query_typed(&sql, &params).await?;
        let similar = rows
            .iter()
            .map(|row| row.get(0))
            .filter(|it: &String| name_query.distance(it).is_some());
        symbols.extend(similar);
    }
    let words: Vec<String> =
        name_query.words().iter().map(|word| format!("{}:A", rows::quote_word(word))).collect();
    let words = words.join(" & ");
    let (prefixes, tags) = filter_params(filter);
    let symbol = rows::symbol_key(name_query.symbol());
    let definitions_max = DEFINITIONS_MAX;
    let params: [SqlQueryParam<'_>; 6] = [
        (&symbol, Type::TEXT),
        (&definitions_max, Type::INT8),
        (&prefixes, Type::TEXT_ARRAY),
        (&tags, Type::TEXT_ARRAY),
        (&words, Type::TEXT),
        (&symbols, Type::TEXT_ARRAY),
    ];
    let chunks = tables.table("chunks");
    let documents = tables.table("documents");
    let by = |condition: &str| {
        format!(
            "(select c.id from {names} n join {chunks} c on c.id = n.chunk
            join {documents} d on d.id = c.document where {condition} {FILTER_CONDITION} limit $2)"
        )
    };
    let sql = format!(
        "select distinct on (c.id) {SUMMARY_COLUMNS} from {chunks} c join {documents} d on d.id = c.document
        where c.id in ({} union {} union {} union
            (select c.id from {chunks} c join {documents} d on d.id = c.document
            where $5 <> '' and c.words @@ $5::text::tsquery {FILTER_CONDITION} limit $2))",
        by("n.symbol = $1"),
        by("starts_with(n.symbol, $1)"),
        by("n.symbol = any($6)"),
    );
    let rows = client.query_typed(&sql, &params).await?;
    Ok(name_query.best_matches(rows.iter().map(read_summary), limit))
}
