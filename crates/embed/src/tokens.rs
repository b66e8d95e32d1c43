//! Tokenizer of a model, from the file of the Hugging Face library or from a list of word pieces.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde::Deserialize;
use tokenizers::TruncationParams;
use tokenizers::models::ModelWrapper;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;

use crate::error::ModelFolderError;
use crate::folder::{read_optional_json, read_tokenizer_file};

/// Maximum length of the text that is read for each token, in bytes. Few words are longer than
/// this. The limit keeps the time for a long text short.
const BYTES_PER_TOKEN_MAX: usize = 64;
/// A hieroglyph, which no vocabulary contains.
const UNKNOWN_TEXT: &str = "\u{13000}";

/// Highest number of special tokens that a tokenizer may add to a text, such as `[CLS]` and `[SEP]`.
const ADDED_TOKENS_MAX: usize = 2;

/// A tokenizer that splits texts into the tokens of a model.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Ids of tokens that only the tokenizer itself may add to a text.
    special: HashSet<u32>,
    /// Highest number of tokens of a text, including the start and end tokens.
    tokens_max: usize,
    /// Hash of the files that define the tokens.
    hash: blake3::Hash,
}

impl Tokenizer {
    /// Reads the tokenizer of a model's folder. Fails if a token id is not below `vocabulary`, the
    /// number of tokens that the model knows.
    pub(crate) fn read(folder: &Path, vocabulary: usize) -> Result<Self, ModelFolderError> {
        let file = folder.join("tokenizer.json");
        if let Some(bytes) = read_tokenizer_file(&file)? {
            let hash = blake3::hash(&bytes);
            return Self::open(&file, hash, vocabulary, || {
                tokenizers::Tokenizer::from_bytes(&bytes)
            });
        }
        let list = folder.join("vocab.txt");
        let Some(bytes) = read_tokenizer_file(&list)? else {
            return Err(ModelFolderError::damaged(&file, "is missing, and so is `vocab.txt`"));
        };
        let config: Option<TokenizerConfig> =
            read_optional_json(&folder.join("tokenizer_config.json"))?;
        let config = config.unwrap_or_default();
        let hash = blake3::hash(&[&bytes[..], format!("{config:?}").as_bytes()].concat());
        Self::open(&list, hash, vocabulary, || from_word_pieces(&bytes, &config))
    }

    /// Checks the tokenizer that `parse` returns, which `file` defines.
    fn open(
        file: &Path,
        hash: blake3::Hash,
        vocabulary: usize,
        parse: impl Fn() -> tokenizers::Result<tokenizers::Tokenizer>,
    ) -> Result<Self, ModelFolderError> {
        // The library panics at some invalid definitions.
        let checked = catch_unwind(AssertUnwindSafe(|| {
            let mut inner = parse().map_err(|err| format!("has invalid content: {err}"))?;
            let special = prepare(&mut inner, vocabulary).map_err(|err| err.to_string())?;
            Ok(Self { inner, special, tokens_max: usize::MAX, hash })
        }));
        let checked = checked.unwrap_or_else(|_| Err("has invalid content".to_owned()));
        checked.map_err(|what| ModelFolderError::damaged(file, what))
    }

    /// Returns a hash of everything that determines the tokens.
    pub(crate) fn hash(&self) -> blake3::Hash {
        self.hash
    }

    /// Limits the number of tokens of a text, including the start and end tokens, to at least 3.
    pub(crate) fn limit(&mut self, tokens_max: usize) {
        self.tokens_max = tokens_max.max(ADDED_TOKENS_MAX + 1);
        let limit = TruncationParams { max_length: self.tokens_max, ..TruncationParams::default() };
        self.inner.with_truncation(Some(limit)).expect("a stride of zero is below each limit");
    }

    /// Returns the tokens of `text`, including the start and end tokens, up to the limit. Reads 64
    /// bytes of the text for each token at most.
    ///
    /// Names of special tokens in the text have no effect: they are split like other words, or left
    /// out if the tokenizer cannot split them.
    pub(crate) fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let end = text.floor_char_boundary(self.tokens_max.saturating_mul(BYTES_PER_TOKEN_MAX));
        let encoding = self.inner.encode_fast(&text[..end], true)?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_special_tokens_mask());
        let tokens = tokens.filter(|(id, added)| **added == 1 || !self.special.contains(*id));
        Ok(tokens.map(|(id, _)| *id).take(self.tokens_max).collect())
    }
}

/// Returns the tokenizer of a BERT model with the word pieces `bytes`, one on each line.
fn from_word_pieces(
    bytes: &[u8],
    config: &TokenizerConfig,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let model = WordPiece::builder()
        .vocab(WordPiece::read_bytes(bytes)?)
        .unk_token("[UNK]".to_owned())
        .build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let TokenizerConfig { do_lower_case, strip_accents, tokenize_chinese_chars } = *config;
    let normalizer =
        BertNormalizer::new(true, tokenize_chinese_chars, strip_accents, do_lower_case);
    tokenizer.with_normalizer(Some(normalizer))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    Ok(tokenizer)
}

/// Removes padding and length limits from `tokenizer`. Adds the start and end tokens of BERT if the
/// tokenizer does not define any. Returns the ids of tokens that only the tokenizer itself may add.
///
/// # Errors
/// Fails if the tokenizer lacks tokens that it needs, is random, has ids that are not below
/// `vocabulary`, or adds more than two tokens to a text.
fn prepare(
    tokenizer: &mut tokenizers::Tokenizer,
    vocabulary: usize,
) -> tokenizers::Result<HashSet<u32>> {
    if matches!(tokenizer.get_model(), ModelWrapper::BPE(model) if model.dropout.is_some()) {
        return Err("has a `dropout`, which makes tokens random".into());
    }
    let tokens = tokenizer.get_vocab(true);
    if let Some((token, id)) = tokens.iter().find(|(_, id)| **id as usize >= vocabulary) {
        let what = format!("gives `{token}` the id {id}, but the model has {vocabulary} tokens");
        return Err(what.into());
    }
    tokenizer.with_padding(None).with_truncation(None)?;
    // Names of special tokens in a text are text.
    tokenizer.set_encode_special_tokens(true);
    if tokenizer.get_post_processor().is_none() {
        let token = |token: &str| {
            let id = tokenizer.token_to_id(token);
            let id = id.ok_or_else(|| format!("has no token `{token}`"))?;
            tokenizers::Result::Ok((token.to_owned(), id))
        };
        let processor = BertProcessing::new(token("[SEP]")?, token("[CLS]")?);
        tokenizer.with_post_processor(Some(processor));
    }
    let unknown = |err| format!("cannot read the character `{UNKNOWN_TEXT}`: {err}");
    let unknown = tokenizer.encode_fast(UNKNOWN_TEXT, true).map_err(unknown)?;
    let added = unknown.get_special_tokens_mask().iter().filter(|added| **added == 1).count();
    if !(1..=ADDED_TOKENS_MAX).contains(&added) {
        return Err(format!("adds {added} tokens to a text; only 1 or 2 are supported").into());
    }
    if let Some(id) = unknown.get_ids().iter().find(|id| **id as usize >= vocabulary) {
        let what = format!("adds a token with the id {id}, but the model has {vocabulary} tokens");
        return Err(what.into());
    }
    let special = tokenizer.get_added_tokens_decoder();
    let mut special: HashSet<u32> =
        special.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
    let unknown = unknown.get_ids().iter().zip(unknown.get_special_tokens_mask());
    for (id, _) in unknown.filter(|(_, added)| **added == 0) {
        special.remove(id);
    }
    Ok(special)
}

/// Settings of a tokenizer in `tokenizer_config.json`, which belongs to `vocab.txt`.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    do_lower_case: bool,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: bool,
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        Self { do_lower_case: true, strip_accents: None, tokenize_chinese_chars: true }
    }
}
