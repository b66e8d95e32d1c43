//! WordPiece tokenizer of BERT models.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_normalization::UnicodeNormalization;

use crate::error::ModelFolderError;
use crate::folder::{invalid_json, read_optional_json, read_tokenizer_file};

/// Longest word that can become tokens, in characters. A longer word becomes the unknown token.
const WORD_CHARS_MAX: usize = 100;
/// Longest word that the tokenizer buffers, in bytes. A longer word also exceeds the limit in
/// characters.
const WORD_BYTES_MAX: usize = 4 * WORD_CHARS_MAX;
/// Prefix of a vocabulary entry that continues a word.
const CONTINUATION_PREFIX: &str = "##";

/// A tokenizer that splits texts into the tokens of a model.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    ids: HashMap<Box<str>, u32>,
    /// Longest vocabulary entry, in bytes.
    piece_bytes_max: usize,
    begin: u32,
    end: u32,
    unknown: u32,
    lowercases: bool,
    strips_accents: bool,
    cleans: bool,
    separates_chinese: bool,
}

impl Tokenizer {
    /// Reads the tokenizer of a model's folder. Fails if a token id is not below `vocabulary`, the
    /// number of tokens that the model knows.
    pub(crate) fn read(folder: &Path, vocabulary: usize) -> Result<Self, ModelFolderError> {
        let file = folder.join("tokenizer.json");
        if let Some(bytes) = read_tokenizer_file(&file)? {
            return Self::from_json(&file, &bytes, vocabulary);
        }
        let file = folder.join("vocab.txt");
        let Some(bytes) = read_tokenizer_file(&file)? else {
            let what = "is missing, and so is `vocab.txt`";
            return Err(ModelFolderError::damaged(&folder.join("tokenizer.json"), what));
        };
        let text = String::from_utf8(bytes)
            .map_err(|err| ModelFolderError::damaged(&file, format!("is not UTF-8: {err}")))?;
        let pieces = text.lines().map(|line| line.trim_end_matches('\r')).zip(0..);
        let numbers = pieces.map(|(piece, number)| (piece.into(), number)).collect();
        /// Settings of a tokenizer in `tokenizer_config.json`.
        #[derive(Deserialize)]
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
        let file_content: TokenizerConfig =
            read_optional_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let normalizer = TokenNormalizer {
            clean_text: true,
            handle_chinese_chars: file_content.tokenize_chinese_chars,
            strip_accents: file_content.strip_accents,
            lowercase: file_content.do_lower_case,
        };
        Self::new(&file, numbers, &normalizer, "[UNK]", vocabulary)
    }

    fn from_json(file: &Path, bytes: &[u8], vocabulary: usize) -> Result<Self, ModelFolderError> {
        let unsupported = |what: String| ModelFolderError::unsupported(file, what);
        let definition: TokenizerDefinition =
            serde_json::from_slice(bytes).map_err(|err| invalid_json(file, &err))?;
        let kind = |part: &Value| part["type"].as_str().unwrap_or("none").to_owned();
        let kinds = [
            ("model", kind(&definition.model), "WordPiece"),
            ("normalizer", kind(&definition.normalizer), "BertNormalizer"),
            ("pre-tokenizer", kind(&definition.pre_tokenizer), "BertPreTokenizer"),
        ];
        for (part, kind, known) in kinds {
            // Some old files do not name the type of their model.
            if kind != known && !(part == "model" && kind == "none") {
                return Err(unsupported(format!(
                    "has a {part} of the type `{kind}`; only `{known}` is supported"
                )));
            }
        }
        let model: WordPieceModel =
            serde_json::from_value(definition.model).map_err(|err| invalid_json(file, &err))?;
        if model.continuing_subword_prefix != CONTINUATION_PREFIX
            || model.max_input_chars_per_word != WORD_CHARS_MAX
        {
            let what = format!(
                "has the prefix `{}` and words of {} characters; only `{CONTINUATION_PREFIX}` and \
                 {WORD_CHARS_MAX} are supported",
                model.continuing_subword_prefix, model.max_input_chars_per_word
            );
            return Err(unsupported(what));
        }
        let normalizer: TokenNormalizer = serde_json::from_value(definition.normalizer)
            .map_err(|err| invalid_json(file, &err))?;
        Self::new(file, model.vocab, &normalizer, &model.unk_token, vocabulary)
    }

    fn new(
        file: &Path,
        numbers: HashMap<Box<str>, u32>,
        normalizer: &TokenNormalizer,
        unknown: &str,
        vocabulary: usize,
    ) -> Result<Self, ModelFolderError> {
        let number = |piece: &str| {
            let found = numbers.get(piece).copied();
            found.ok_or_else(|| ModelFolderError::damaged(file, format!("has no piece `{piece}`")))
        };
        let begin = number("[CLS]")?;
        let end = number("[SEP]")?;
        let unknown = number(unknown)?;
        if let Some((piece, number)) = numbers.iter().find(|(_, it)| **it as usize >= vocabulary) {
            let what = format!(
                "gives `{piece}` the number {number}, but the model has {vocabulary} pieces"
            );
            return Err(ModelFolderError::damaged(file, what));
        }
        let piece_bytes_max = numbers.keys().map(|piece| piece.len()).max().unwrap_or_default();
        Ok(Self {
            piece_bytes_max,
            begin,
            end,
            unknown,
            lowercases: normalizer.lowercase,
            strips_accents: normalizer.strip_accents.unwrap_or(normalizer.lowercase),
            cleans: normalizer.clean_text,
            separates_chinese: normalizer.handle_chinese_chars,
            ids: numbers,
        })
    }

    /// Returns a hash of everything that determines the tokens.
    pub(crate) fn hash(&self) -> blake3::Hash {
        let Self { ids: numbers, piece_bytes_max: _, begin, end, unknown, .. } = self;
        let Self {
            lowercases: lowers,
            strips_accents,
            cleans,
            separates_chinese: sets_chinese_apart,
            ..
        } = self;
        let mut pieces: Vec<_> = numbers.iter().collect();
        pieces.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for (piece, number) in pieces {
            hasher.update(piece.as_bytes()).update(&[0]).update(&number.to_le_bytes());
        }
        let marks = [*begin, *end, *unknown];
        let flags = [*lowers, *strips_accents, *cleans, *sets_chinese_apart];
        hasher.update(format!("{marks:?} {flags:?}").as_bytes());
        hasher.finalize()
    }

    /// Returns at most `most` tokens of `text`, including the start and end tokens.
    ///
    /// Names of special tokens in the text have no effect: `[SEP]` becomes three words, not the end
    /// token.
    pub(crate) fn tokenize(&self, text: &str, most: usize) -> Vec<u32> {
        let mut tokens = vec![self.begin];
        let mut word = String::new();
        let full = |tokens: &Vec<u32>| tokens.len() + 1 >= most;
        self.for_each_normalized(text, &mut |char| {
            if char.is_whitespace() {
                self.push_pieces(&mut word, &mut tokens);
            } else if is_punctuation(char) {
                self.push_pieces(&mut word, &mut tokens);
                word.push(char);
                self.push_pieces(&mut word, &mut tokens);
            } else if word.len() <= WORD_BYTES_MAX {
                word.push(char);
            }
            !full(&tokens)
        });
        self.push_pieces(&mut word, &mut tokens);
        tokens.truncate(most - 1);
        tokens.push(self.end);
        tokens
    }

    /// Passes the normalized characters of `text` to `take`, until `take` returns false.
    fn for_each_normalized(&self, text: &str, take: &mut dyn FnMut(char) -> bool) {
        let clean = text.chars().filter(|char| !self.cleans || !is_noise(*char));
        let clean = clean.map(|char| if self.cleans && is_space(char) { ' ' } else { char });
        let apart = clean.flat_map(|char| {
            let is_apart = self.separates_chinese && is_chinese(char);
            let around = is_apart.then_some(' ');
            [around, Some(char), around].into_iter().flatten()
        });
        if self.strips_accents {
            let bare = apart.nfd().filter(|char| {
                char.is_ascii() || get_general_category(*char) != GeneralCategory::NonspacingMark
            });
            self.for_each_lowercase(bare, take);
        } else {
            self.for_each_lowercase(apart, take);
        }
    }

    fn for_each_lowercase(
        &self,
        chars: impl Iterator<Item = char>,
        take: &mut dyn FnMut(char) -> bool,
    ) {
        for char in chars {
            let goes_on = if self.lowercases && !char.is_ascii() {
                char.to_lowercase().all(&mut *take)
            } else if self.lowercases {
                take(char.to_ascii_lowercase())
            } else {
                take(char)
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Splits `word` into the longest known entries of the vocabulary, appends their token ids to
    /// `tokens`, and clears `word`.
    fn push_pieces(&self, word: &mut String, tokens: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let before = tokens.len();
        let is_long = word.len() > WORD_CHARS_MAX && word.chars().count() > WORD_CHARS_MAX;
        let mut rest = if is_long { "" } else { word.as_str() };
        let mut known = !is_long;
        let mut piece = String::with_capacity(self.piece_bytes_max);
        while !rest.is_empty() {
            piece.clear();
            piece.push_str(if tokens.len() > before { CONTINUATION_PREFIX } else { "" });
            let prefix = piece.len();
            piece.push_str(rest);
            let found = loop {
                if piece.len() <= self.piece_bytes_max
                    && let Some(number) = self.ids.get(piece.as_str())
                {
                    break Some(*number);
                }
                piece.pop();
                if piece.len() <= prefix {
                    break None;
                }
            };
            let Some(number) = found else {
                known = false;
                break;
            };
            tokens.push(number);
            rest = &rest[piece.len() - prefix..];
        }
        if !known {
            tokens.truncate(before);
            tokens.push(self.unknown);
        }
        word.clear();
    }
}

#[derive(Deserialize)]
struct TokenizerDefinition {
    model: Value,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

/// WordPiece model of a tokenizer: its vocabulary and its rules.
#[derive(Deserialize)]
struct WordPieceModel {
    vocab: HashMap<Box<str>, u32>,
    unk_token: String,
    #[serde(default = "goes_on")]
    continuing_subword_prefix: String,
    #[serde(default = "word_chars_max")]
    max_input_chars_per_word: usize,
}

fn goes_on() -> String {
    CONTINUATION_PREFIX.to_owned()
}

fn word_chars_max() -> usize {
    WORD_CHARS_MAX
}

/// Rules by which a tokenizer normalizes a text, such as conversion to lower case.
#[derive(Deserialize)]
struct TokenNormalizer {
    clean_text: bool,
    handle_chinese_chars: bool,
    strip_accents: Option<bool>,
    lowercase: bool,
}

fn is_space(char: char) -> bool {
    matches!(char, '\t' | '\n' | '\r') || char.is_whitespace()
}

/// Returns true if BERT's normalization removes `char`.
fn is_noise(char: char) -> bool {
    if char.is_ascii() {
        return char.is_ascii_control() && !matches!(char, '\t' | '\n' | '\r');
    }
    let is_other = matches!(
        get_general_category(char),
        GeneralCategory::Control | GeneralCategory::Format | GeneralCategory::PrivateUse
    );
    char == '\u{fffd}' || is_other
}

fn is_punctuation(char: char) -> bool {
    if char.is_ascii() {
        return char.is_ascii_punctuation();
    }
    matches!(
        get_general_category(char),
        GeneralCategory::ConnectorPunctuation
            | GeneralCategory::DashPunctuation
            | GeneralCategory::OpenPunctuation
            | GeneralCategory::ClosePunctuation
            | GeneralCategory::InitialPunctuation
            | GeneralCategory::FinalPunctuation
            | GeneralCategory::OtherPunctuation
    )
}

/// Returns true if `char` is a CJK ideograph, which is a word of its own.
fn is_chinese(char: char) -> bool {
    matches!(
        u32::from(char),
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}
