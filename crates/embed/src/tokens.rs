//! Tokenizer of a model, from the file of the Hugging Face library or from a list of word pieces.

use std::path::Path;

use serde::Deserialize;
use tokenizers::TruncationParams;
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

/// A tokenizer that splits texts into the tokens of a model.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Hash of everything that determines the tokens.
    hash: blake3::Hash,
}

impl Tokenizer {
    /// Reads the tokenizer of a model's folder. Fails if a token id is not below `vocabulary`, the
    /// number of tokens that the model knows.
    pub(crate) fn read(folder: &Path, vocabulary: usize) -> Result<Self, ModelFolderError> {
        let file = folder.join("tokenizer.json");
        let (file, read) = match read_tokenizer_file(&file)? {
            Some(bytes) => (file, tokenizers::Tokenizer::from_bytes(&bytes)),
            None => {
                let list = folder.join("vocab.txt");
                let Some(bytes) = read_tokenizer_file(&list)? else {
                    let what = "is missing, and so is `vocab.txt`";
                    return Err(ModelFolderError::damaged(&file, what));
                };
                let config = read_optional_json(&folder.join("tokenizer_config.json"))?;
                (list, from_word_pieces(&bytes, &config.unwrap_or_default()))
            }
        };
        let damaged = |what: String| ModelFolderError::damaged(&file, what);
        let mut inner = read.map_err(|err| damaged(format!("has invalid content: {err}")))?;
        prepare(&mut inner).map_err(|err| damaged(err.to_string()))?;
        let tokens = inner.get_vocab(true);
        if let Some((token, id)) = tokens.iter().find(|(_, id)| **id as usize >= vocabulary) {
            let what =
                format!("gives `{token}` the id {id}, but the model has {vocabulary} tokens");
            return Err(damaged(what));
        }
        let definition = inner.to_string(false).map_err(|err| damaged(err.to_string()))?;
        Ok(Self { inner, hash: blake3::hash(definition.as_bytes()) })
    }

    /// Returns a hash of everything that determines the tokens.
    pub(crate) fn hash(&self) -> blake3::Hash {
        self.hash
    }

    /// Limits the number of tokens of a text, including the start and end tokens.
    pub(crate) fn limit(&mut self, tokens_max: usize) {
        let limit = TruncationParams { max_length: tokens_max, ..TruncationParams::default() };
        self.inner.with_truncation(Some(limit)).expect("a stride of zero is below each limit");
    }

    /// Returns the tokens of `text`, including the start and end tokens, up to the limit.
    ///
    /// Names of special tokens in the text have no effect: `[SEP]` becomes three words, not the end
    /// token.
    pub(crate) fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let tokens_max = self.inner.get_truncation().map_or(usize::MAX, |limit| limit.max_length);
        let end = text.floor_char_boundary(tokens_max.saturating_mul(BYTES_PER_TOKEN_MAX));
        Ok(self.inner.encode_fast(&text[..end], true)?.get_ids().to_vec())
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
/// tokenizer does not define any. Fails if the tokenizer lacks tokens that it needs.
fn prepare(tokenizer: &mut tokenizers::Tokenizer) -> tokenizers::Result<()> {
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
    tokenizer.encode_fast(UNKNOWN_TEXT, true).map_err(unknown)?;
    Ok(())
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
