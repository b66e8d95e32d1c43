//! Renders the documentation page about search quality and how it is measured.

/// Returns the text of the page `docs/reference/search-quality.md`, which contains `tables`.
pub fn render(tables: &str) -> String {
    format!("{HEAD}\n{}\n", tables.trim_end())
}

const HEAD: &str = "\
# How well search ranks

<!-- Written by `cargo xtask eval-search`. -->

A question is the first sentence of a function's doc comment. The only correct answer is that
function, among all functions of its package. Doc comments, docstrings and other comments are
removed from the
searched code. tree-sitter finds the functions. Tests and vendored code are excluded.

Packages are fetched by name and version and verified by checksum. Each package is in one split:

- *fresh*: a rule draws the packages after a change of the ranking. We tuned nothing on the *fresh*
  packages, and nobody had looked at their results before the draw.
  [pool.txt](../../tests/search-eval/pool.txt) has the names to draw from: Python wheels, and
  Debian's packages of Rust, JavaScript, Go and Ruby. The rule sorts the names by the SHA-256 of a
  seed, the kind and the name. The rule takes the first five packages of each language with at least
  40 documented functions and 20 questions ([fresh.toml](../../tests/search-eval/fresh.toml)). If we
  change the ranking because of a result on *fresh*, the *fresh* packages become tuning packages, and
  a new draw replaces them. After this draw, we stored the word vectors with less precision, to make
  the executable smaller, and trained the reranker for searches without a model again on *tune*. We
  had seen the figures before: without a model, MRR@10 was 0.684 on *fresh* and 0.652 on *report*.
- *report*: well-known crates and Python wheels. We tuned no weight on the *report* packages, but we
  chose the methods by their results, so the figures of *report* may be too good.
- *tune* and *train*: we chose all weights on the *tune* packages, and trained the built-in models on
  both sets. Both sets are crates and Python wheels, so the models have learned from Rust and Python
  alone. [packages.toml](../../tests/search-eval/packages.toml) lists the packages and explains the
  split.

We use a question if all of these conditions hold:

- The question is an ASCII sentence of 5 to 40 words.
- No other function of the package has the same sentence.
- The function has at least 4 lines, a unique body and a meaningful name.

A hash chooses at most 80 questions of each package, and at most 150 questions of each of the nine
packages that measure vectors. The *overlap* of a question is the share of the words in the
function's name that the question contains. If the overlap is below 0.34, names do not help.

- *ripgrep*: the program ripgrep searches for any word of the question, with one file for each
  function. Functions with the most different words come first, then functions with the most hits.
- *BM25*: `\\w+` in lower case over all text of the function.
- *BM25 with symbol and path*: BM25 after identifiers are split, stop words removed, and words
  stemmed with Snowball's English stemmer. The name counts three times, and the path counts once.
  The parameters are k1 = 1.5 and b = 0.75, the best of five pairs on the tuning packages.
- *MiniLM*: the embedding model all-MiniLM-L6-v2 alone, over the first 128 tokens of the unchanged
  function. Functions are ranked by cosine similarity.
- *convex .5/.5 of both*: the mean of two scores, *BM25 with symbol and path* and *MiniLM*. Each
  score is first scaled from 0 (its minimum) to 1 (its maximum).
- *ours*: toolgate's search index, with one chunk for each function. *words* is BM25 over fields,
  *static* is the built-in word vectors, and *rerank* is the reranking network.

The tables about *whole files* use toolgate's own chunks, with comments blanked. A chunk is a correct
answer if it overlaps the function.

The questions of the tables about *commits* are subjects of commits in the upstream
[repositories](../../tests/search-eval/repositories.toml) of the *fresh* packages. The index contains
the files before the last 400 commits. A hash chooses 20 later commits of each repository. The correct
answers are the files that the commit changes and that existed before, at most five. The rank of a
question is the rank of the first correct answer.

MRR@10 is the mean of the reciprocal rank of the correct answer, which counts as 0 after the tenth
rank. NDCG@10 is the mean of 1 divided by log2(1 + rank). R@1 is the share of questions whose correct
answer comes first. ± is half of the 95 % confidence interval, from 1,000 bootstrap samples of the
questions. The interval of a ratio samples the questions of both methods together. Without a
model, the baseline is *BM25 with symbol and path*. With MiniLM, the baseline is the convex fusion.
Answers with equal scores share their middle rank.
";
