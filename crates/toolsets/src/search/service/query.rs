//! Validates the input of a search.

use std::collections::HashSet;

use toolgate_chunks::words::concepts;
use toolgate_chunks::{TAGS, find_language};
use toolgate_contract::{ToolContext, ToolError, ToolErrorKind};
use toolgate_search::{VectorSpace, static_model};

use crate::search::engines::VectorOrigin;
use toolgate_world::Root;

/// Longest search query, in bytes.
const QUERY_BYTES_MAX: usize = 4 << 10;
/// The maximum number of tags in a search, which is more than any file has.
const TAGS_MAX: usize = 32;

/// The input of a search by meaning and words.
#[derive(Debug, Clone, Default)]
pub(crate) struct SearchRequest {
    /// The text of the query.
    pub(crate) query: Option<String>,
    /// A vector of similar passages to find. A query and a vector have equal weight.
    pub(crate) embedding: Option<Vec<f64>>,
    /// The maximum number of hits.
    pub(crate) top_k: usize,
    /// True if each hit is a file, with its best passage and the locations of further passages.
    /// False if each passage is a hit.
    pub(crate) by_file: bool,
    /// The namespace to search; `None` for the complete workspace.
    pub(crate) namespace: Option<String>,
    /// Start of the paths of the files to search; `None` for all files.
    pub(crate) path_prefix: Option<String>,
    /// Tags that the files to search must all have.
    pub(crate) tags: Vec<String>,
    /// True to rank the matches again by names and paths.
    pub(crate) rerank: bool,
    /// True to return the vectors of the passages.
    pub(crate) with_vectors: bool,
}

/// A validated search request.
pub(super) struct SearchQuery {
    pub(super) request: SearchRequest,
    /// Text of the query, if it contains any words.
    pub(super) query: Option<String>,
    /// The caller's vector, scaled to length 1, and the model that computed it.
    pub(super) vector: Option<(VectorOrigin, Vec<f32>)>,
}

impl SearchQuery {
    /// Validates `request`. `model` is the vector space of the configured model. Fails if the
    /// request is invalid.
    pub(super) fn new(
        request: SearchRequest,
        model: Option<&VectorSpace>,
    ) -> Result<Self, ToolError> {
        let SearchRequest { query, embedding, .. } = &request;
        if let Some(len) = query.as_ref().map(String::len).filter(|len| *len > QUERY_BYTES_MAX) {
            let message = format!("it has {len} bytes; at most {QUERY_BYTES_MAX} are allowed");
            return Err(ToolError::invalid("/query", message));
        }
        let vector = embedding.as_deref().map(|numbers| parse_vector(numbers, model)).transpose();
        let vector = vector.map_err(|why| ToolError::invalid("/embedding", why))?;
        let query = query.clone().filter(|query| !concepts(query).is_empty());
        if query.is_none() && vector.is_none() {
            return Err(ToolError::invalid(
                "/query",
                "it is missing or has no words; pass the words to search for, or an embedding",
            ));
        }
        Ok(Self { request, query, vector })
    }
}

/// Normalizes the caller's vector, and determines its model by the number of dimensions. Fails if
/// no model has this number, or the vector is invalid.
fn parse_vector(
    numbers: &[f64],
    model: Option<&VectorSpace>,
) -> Result<(VectorOrigin, Vec<f32>), String> {
    let built_in = static_model::space();
    let len = numbers.len();
    let origin = match model {
        Some(model) if model.dimensions == len => VectorOrigin::Model,
        Some(_) | None if built_in.dimensions == len => VectorOrigin::Static,
        Some(VectorSpace { model, dimensions }) => {
            return Err(format!(
                "it has {len} numbers; vectors of {model} have {dimensions}, and of {} {}",
                built_in.model, built_in.dimensions
            ));
        }
        None => {
            let VectorSpace { model, dimensions } = built_in;
            return Err(format!("it has {len} numbers; vectors of {model} have {dimensions}"));
        }
    };
    if let Some(at) = numbers.iter().position(|it| !it.is_finite()) {
        return Err(format!("the number at index {at} is not finite"));
    }
    let largest = numbers.iter().fold(0.0_f64, |most, it| most.max(it.abs()));
    if largest == 0.0 {
        return Err("all of its numbers are 0; at least one must differ from 0".to_owned());
    }
    // The numbers are scaled first, because the squares of the largest ones would overflow.
    #[allow(clippy::cast_possible_truncation, reason = "it is at most 1")]
    let scaled: Vec<f32> = numbers.iter().map(|it| (it / largest) as f32).collect();
    Ok((origin, normalize(scaled)))
}

/// Scales `vector` to length 1.
pub(super) fn normalize(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|it| it * it).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|it| *it /= length);
    }
    vector
}

/// Returns the tags `given` without duplicates, ignoring case. Fails if more than 32 tags remain.
/// `pointer` is the location of the tags in the input.
pub(crate) fn distinct_tags(given: Vec<String>, pointer: &str) -> Result<Vec<String>, ToolError> {
    let mut seen = HashSet::new();
    let mut tags = Vec::new();
    for tag in given {
        if !seen.insert(tag.to_ascii_lowercase()) {
            continue;
        }
        if tags.len() == TAGS_MAX {
            let message = format!("it has more than {TAGS_MAX} different tags; pass fewer");
            return Err(ToolError::invalid(pointer, message));
        }
        tags.push(tag);
    }
    Ok(tags)
}

/// Returns the canonical name of the language `given`. If `or_tag` is true, other tags are also
/// accepted. `pointer` is the location of the language in the input.
///
/// # Errors
/// Fails if no file can have this language or tag, so that no file would ever match.
pub(crate) fn resolve_tag(given: &str, or_tag: bool, pointer: &str) -> Result<String, ToolError> {
    let lower = given.to_lowercase();
    let tag = TAGS.into_iter().find(|tag| or_tag && (*tag == lower || format!("{tag}s") == lower));
    let known = tag.or_else(|| find_language(given)).map(str::to_owned);
    known.ok_or_else(|| {
        let message = match or_tag {
            true => format!(
                "no file of the workspace has the tag `{given}`; tags are languages, such as \
                 `rust` or `python`, and `{}`",
                TAGS.join("`, `")
            ),
            false => format!("unknown language `{given}`; use a name such as `rust` or `python`"),
        };
        ToolError::invalid(pointer, message)
    })
}

/// Explains that a search in `root` found nothing because no file can have one of `tags`, or
/// because the path `prefix` does not exist. Returns `None` if there is a different reason.
pub(crate) async fn explain_narrowing(
    ctx: &ToolContext,
    root: &Root,
    prefix: Option<&str>,
    tags: &[String],
) -> Option<String> {
    if let Some(err) = tags.iter().find_map(|tag| resolve_tag(tag, true, "/tags").err()) {
        return Some(err.message);
    }
    let prefix = resolve_prefix(root, prefix?).ok().filter(|prefix| !prefix.is_empty())?;
    let looked = root.run_blocking(ctx, move |root, _| root.walk_start(&prefix).map(|_| ())).await;
    let err = looked.err().filter(|err| err.fault == ToolErrorKind::NotFound)?;
    Some(err.message)
}

/// Converts `prefix` to the path of a folder or file relative to `root`. Returns an empty path for
/// all files.
///
/// # Errors
/// Fails if the prefix leads out of `root`.
pub(crate) fn resolve_prefix(root: &Root, prefix: &str) -> Result<String, ToolError> {
    let outside = || {
        let message = format!(
            "`{prefix}` is not in {}; pass the relative path of a folder or file, e.g. `src/`, or \
             omit it for all paths",
            root.path().display()
        );
        ToolError::invalid("/path", message)
    };
    let mut inner = prefix;
    if prefix.starts_with('/') {
        let root = root.path().to_str().map(|root| root.trim_end_matches('/'));
        let after = root.and_then(|root| prefix.strip_prefix(root)).ok_or_else(outside)?;
        inner = after.trim_start_matches('/');
        if inner.len() == after.len() && !after.is_empty() {
            return Err(outside());
        }
    }
    while let Some(rest) = inner.strip_prefix("./") {
        inner = rest.trim_start_matches('/');
    }
    if inner.split('/').any(|part| part == "..") {
        return Err(outside());
    }
    Ok(if inner == "." { String::new() } else { inner.to_owned() })
}
