//! Fields of the documents in tantivy, the library of the word index. An indexed file is one such
//! document, and so is each of its chunks.

use serde::{Deserialize, Serialize};
use tantivy::schema::{
    BytesOptions, Field, IndexRecordOption, NumericOptions, Schema, TantivyDocument,
    TextFieldIndexing, TextOptions,
};
use tantivy::tokenizer::{RawTokenizer, Token, TokenStream, Tokenizer, TokenizerManager};
use toolgate_chunks::words::words;
use toolgate_chunks::{ChunkKind, TextChunk};

use super::IndexedDocumentVersion;
use crate::rank::{ChunkTexts, FIELDS};
use crate::{ChunkHash, ChunkSummary, IndexDocument};

/// Name of the index field that contains the path of a file.
pub(super) const PATH_FIELD: &str = "path";
pub(super) const HASH_FIELD: &str = "hash";
pub(super) const NUMBER_FIELD: &str = "number";
pub(super) const KNOWN_FIELD: &str = "known";

/// Longest path of an indexed file, in bytes. Tantivy, the library of the word index, would drop a
/// longer term.
pub(super) const PATH_BYTES_MAX: usize = 16 << 10;

/// Handles of the fields in the word index.
#[derive(Clone, Copy)]
pub(super) struct IndexSchemaFields {
    /// Fields with the searchable texts of a chunk, in the order of [`crate::fields::ALL_FIELDS`].
    pub(super) words: [Field; FIELDS],
    /// Field with the complete path of the indexed file. All documents with one path are deleted
    /// together.
    pub(super) path: Field,
    /// Field with the tags of a file, each in lower case.
    pub(super) tag: Field,
    /// Field with the complete names that a chunk defines, each in lower case.
    pub(super) symbol: Field,
    /// Field with the content hash of a chunk, or 0 for a file.
    pub(super) hash: Field,
    /// Field with the number of an entry within its file: 0 for the file itself, 1 and up for its
    /// chunks.
    pub(super) number: Field,
    /// Field with the etag and fingerprint of a file, by which changes are detected. They are in a
    /// separate column, because those of all files are read at once.
    pub(super) known: Field,
    /// Field with the stored metadata: a [`StoredFileMetadata`] or a [`StoredChunkMetadata`].
    pub(super) stored: Field,
}

/// Metadata of a file that the index stores.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredFileMetadata {
    pub(super) path: String,
    pub(super) etag: String,
    pub(super) commit: Option<String>,
    pub(super) lang: Option<String>,
    pub(super) tags: Vec<String>,
}

impl IndexedDocumentVersion {
    /// Encodes a document's etag, a 0 byte and the document's fingerprint `stamp`. The etag
    /// contains no 0 byte.
    fn encode(etag: &str, stamp: &[u8]) -> Vec<u8> {
        [etag.as_bytes(), &[0], stamp].concat()
    }

    /// Decodes the etag and the fingerprint of a document from the bytes in the index. `None` if
    /// the bytes are invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let etag = String::from_utf8(bytes[..end].to_vec()).ok()?;
        Some(Self { fingerprint: bytes[end + 1..].to_vec(), etag })
    }
}

/// Metadata of a chunk that the index stores, as a compact array.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredChunkMetadata(u32, u32, u8, Vec<String>, Vec<String>, String);

impl StoredChunkMetadata {
    fn new(chunk: &TextChunk) -> Self {
        let TextChunk { first, last, kind, names, within, head, .. } = chunk;
        Self(*first, *last, *kind as u8, names.clone(), within.clone(), head.clone())
    }

    /// Returns the first and the last line of the chunk.
    pub(super) fn lines(&self) -> (u32, u32) {
        (self.0, self.1)
    }

    /// Returns the description of the chunk for search results.
    pub(super) fn into_summary(self, file: &StoredFileMetadata) -> ChunkSummary {
        let Self(first, last, kind, names, within, head) = self;
        let kinds = [
            ChunkKind::Function,
            ChunkKind::Type,
            ChunkKind::Code,
            ChunkKind::Section,
            ChunkKind::Key,
            ChunkKind::Text,
        ];
        ChunkSummary {
            path: file.path.clone(),
            first,
            last,
            kind: kinds.into_iter().find(|it| *it as u8 == kind).unwrap_or(ChunkKind::Text),
            names,
            within,
            head,
            lang: file.lang.clone(),
            tags: file.tags.clone(),
            etag: file.etag.clone(),
            commit: file.commit.clone(),
        }
    }
}

/// Returns the schema of the word index and its fields.
pub(super) fn build_schema() -> (Schema, IndexSchemaFields) {
    let mut schema = Schema::builder();
    let text = TextFieldIndexing::default()
        .set_tokenizer("words")
        .set_index_option(IndexRecordOption::WithFreqs)
        .set_fieldnorms(true);
    let text = TextOptions::default().set_indexing_options(text);
    let whole = TextFieldIndexing::default()
        .set_tokenizer("raw")
        .set_index_option(IndexRecordOption::Basic)
        .set_fieldnorms(false);
    let whole = TextOptions::default().set_indexing_options(whole);
    let words = ["name", "within", "path_words", "head", "doc", "body"];
    let fields = IndexSchemaFields {
        words: words.map(|name| schema.add_text_field(name, text.clone())),
        path: schema.add_text_field(PATH_FIELD, whole.clone().set_fast("raw")),
        tag: schema.add_text_field("tag", whole.clone()),
        symbol: schema.add_text_field("symbol", whole),
        hash: schema.add_u64_field(HASH_FIELD, NumericOptions::default().set_fast()),
        number: schema.add_u64_field(NUMBER_FIELD, NumericOptions::default().set_fast()),
        known: schema.add_bytes_field(KNOWN_FIELD, BytesOptions::default().set_fast()),
        stored: schema.add_bytes_field("kept", tantivy::schema::STORED),
    };
    (schema.build(), fields)
}

/// Returns the tokenizers of the word index: a tokenizer that splits a text into [`words`], and a
/// tokenizer that does not split a text.
pub(super) fn tokenizers() -> TokenizerManager {
    let tokenizers = TokenizerManager::new();
    tokenizers.register("words", WordTokenizer::default());
    tokenizers.register("raw", RawTokenizer::default());
    // Tantivy requests it for fields without text, and never uses it.
    tokenizers.register("default", RawTokenizer::default());
    tokenizers
}

/// Returns `tag` with ASCII letters in lower case, as tags are stored and searched.
pub(super) fn normalize_tag(tag: &str) -> String {
    tag.to_ascii_lowercase()
}

/// Returns the definition's name `name` in lower case, as names are stored and searched.
pub(super) fn normalize_name(name: &str) -> String {
    name.to_lowercase()
}

impl IndexSchemaFields {
    /// Builds the index entry of a file.
    pub(super) fn file_document(
        &self,
        document: &IndexDocument<'_>,
    ) -> serde_json::Result<TantivyDocument> {
        let file = StoredFileMetadata {
            path: document.path.to_owned(),
            etag: document.etag.to_owned(),
            commit: document.commit.map(str::to_owned),
            lang: document.lang.map(str::to_owned),
            tags: document.tags.to_owned(),
        };
        let mut written = self.common_fields(document, 0, ChunkHash(0));
        written.add_bytes(
            self.known,
            &IndexedDocumentVersion::encode(document.etag, document.fingerprint),
        );
        written.add_bytes(self.stored, &serde_json::to_vec(&file)?);
        Ok(written)
    }

    /// Builds the index entry of a chunk. `number` is the number of the chunk within its file, from
    /// 1.
    pub(super) fn chunk_document(
        &self,
        document: &IndexDocument<'_>,
        number: u64,
        chunk: &TextChunk,
        texts: &ChunkTexts<'_>,
        hash: ChunkHash,
    ) -> serde_json::Result<TantivyDocument> {
        let mut written = self.common_fields(document, number, hash);
        for (field, text) in self.words.into_iter().zip(texts) {
            if !text.is_empty() {
                written.add_text(field, text);
            }
        }
        for it in document.tags {
            written.add_text(self.tag, normalize_tag(it));
        }
        for name in &chunk.names {
            written.add_text(self.symbol, normalize_name(name));
        }
        written.add_bytes(self.stored, &serde_json::to_vec(&StoredChunkMetadata::new(chunk))?);
        Ok(written)
    }

    fn common_fields(
        &self,
        document: &IndexDocument<'_>,
        number: u64,
        hash: ChunkHash,
    ) -> TantivyDocument {
        let mut written = TantivyDocument::new();
        written.add_text(self.path, document.path);
        written.add_u64(self.number, number);
        written.add_u64(self.hash, hash.0);
        written
    }
}

/// Adapter of the word splitter [`words`] to tantivy's tokenizer interface.
#[derive(Clone, Default)]
struct WordTokenizer {
    /// Words of the text that is tokenized now, concatenated.
    text: String,
    ends: Vec<usize>,
}

impl Tokenizer for WordTokenizer {
    type TokenStream<'t> = WordTokenStream<'t>;

    fn token_stream<'t>(&'t mut self, text: &'t str) -> WordTokenStream<'t> {
        self.text.clear();
        self.ends.clear();
        words(text, |word| {
            self.text.push_str(word);
            self.ends.push(self.text.len());
        });
        WordTokenStream { words: self, next: 0, begins: 0, token: Token::default() }
    }
}

/// Stream of the words of a text, for tantivy.
struct WordTokenStream<'t> {
    words: &'t WordTokenizer,
    next: usize,
    begins: usize,
    token: Token,
}

impl TokenStream for WordTokenStream<'_> {
    fn advance(&mut self) -> bool {
        let Some(end) = self.words.ends.get(self.next).copied() else { return false };
        self.token.text.clear();
        self.token.text.push_str(&self.words.text[self.begins..end]);
        self.token.position = self.next;
        (self.begins, self.next) = (end, self.next + 1);
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}
