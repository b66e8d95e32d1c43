//! The page that tells what was measured, and how.

/// `docs/reference/search-quality.md` around `tables`.
pub fn of(tables: &str) -> String {
    format!("{HEAD}\n{}\n", tables.trim_end())
}

const HEAD: &str = "\
# How well search ranks

<!-- Written by `cargo xtask eval-search`. -->

A question is the first sentence of a function's doc comment. That function is its only right answer
among all functions of its package. Doc comments, docstrings and other comments are removed from the
searched code. The packages are well-known crates and Python wheels, fetched by name and version and
verified by checksum. [packages.toml](../../tests/search-eval/packages.toml) explains how they were
split; nothing was tuned on the packages reported here. tree-sitter finds the functions. Tests and
vendored code are excluded.

A question is used if it is an ASCII sentence of 5 to 40 words that no other function of the package
has, if its function has at least 4 lines and a unique body, and if its name is meaningful. At most 80
questions of each package are used, chosen by hash; 150 of the nine packages that measure vectors.
The *overlap* of a question is the share of the words of the function's name that it contains. Below
0.34, names do not help.

- *ripgrep*: its own binary, any word of the question, one file for each function; most distinct words
  first, then most hits.
- *BM25*: `\\w+` in lower case over the whole function.
- *BM25 with symbol and path*: identifiers are split, stop words removed, words stemmed with
  Snowball's English stemmer; the name counts three times, the path once; k1 1.5, b 0.75, the best of
  five pairs on the tuning packages.
- *MiniLM*: all-MiniLM-L6-v2 over the unchanged function, 128 tokens, by cosine.
- *convex .5/.5 of both*: BM25 with symbol and path and MiniLM, each scaled from its minimum to its
  maximum.
- *ours*: the index behind the tools, one chunk for each function; *words* is BM25 over fields,
  *static* the built-in word vectors, *rerank* the reranking network.

MRR@10 is the mean of the reciprocal rank of the right answer, 0 beyond the tenth. ± is half of the
95 % interval over 100 bootstrap samples of the questions. Equal scores share their middle rank.
";
