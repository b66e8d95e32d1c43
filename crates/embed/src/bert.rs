//! The BERT network: computes a vector for each token in its context, and combines these vectors
//! into a single vector for the text.

use std::ops::Range;

use crate::activations::{LayerNorm, activate, add_bias, softmax};
use crate::error::ModelFolderError;
use crate::folder::{ActivationFunction, ModelDimensions, ParsedModelFolder, PoolingMethod};
use crate::kernel::MatrixColumnSlice;
use crate::matrix::{MatrixRows, PackedMatrix, multiply};
use crate::weights::ModelWeights;

/// A BERT network with packed weights.
#[derive(Debug)]
pub(crate) struct BertNetwork {
    /// Embeddings of all tokens of the vocabulary, concatenated.
    token_embeddings: Vec<f32>,
    /// Embedding of each position, plus the embedding of the first segment.
    position_embeddings: Vec<f32>,
    norm: LayerNorm,
    layers: Vec<BertLayer>,
    heads: usize,
    hidden: usize,
    activation: ActivationFunction,
    pooling: PoolingMethod,
}

/// Layer of a BERT network: attention and a feed-forward network.
#[derive(Debug)]
struct BertLayer {
    /// The three projections to queries, keys and values, as one matrix.
    qkv: LinearLayer,
    attention_output: LinearLayer,
    attention_norm: LayerNorm,
    up: LinearLayer,
    down: LinearLayer,
    output_norm: LayerNorm,
}

/// Linear layer with packed weights and a bias.
#[derive(Debug)]
struct LinearLayer {
    weight: PackedMatrix,
    bias: Vec<f32>,
}

/// Scratch buffers for a pass through the network, reused to avoid allocations.
#[derive(Default)]
pub(crate) struct ForwardPassBuffers {
    states: Vec<f32>,
    qkv: Vec<f32>,
    attention: Vec<f32>,
    up: Vec<f32>,
    sums: Vec<f32>,
    attention_weights: Vec<f32>,
    keys: PackedMatrix,
    values: PackedMatrix,
    slices: Vec<MatrixColumnSlice>,
}

impl BertNetwork {
    pub(crate) fn read(
        folder: &ParsedModelFolder,
        weights: &ModelWeights,
        tokens_max: usize,
    ) -> Result<Self, ModelFolderError> {
        let shape = &folder.shape;
        let hidden = shape.hidden_size;
        let at = |name: &str| format!("embeddings.{name}.weight");
        let words = weights.read_tensor(&at("word_embeddings"), &[shape.vocab_size, hidden])?;
        let places = [shape.max_position_embeddings, hidden];
        let mut positions = weights.read_tensor(&at("position_embeddings"), &places)?;
        positions.truncate(tokens_max * hidden);
        positions.shrink_to_fit();
        let kinds = [shape.type_vocab_size, hidden];
        let kinds = weights.read_tensor(&at("token_type_embeddings"), &kinds)?;
        add_bias(&mut positions, &kinds[..hidden]);
        let layers = (0..shape.num_hidden_layers).map(|at| BertLayer::read(weights, shape, at));
        Ok(Self {
            token_embeddings: words,
            position_embeddings: positions,
            norm: read_norm(weights, "embeddings.LayerNorm", shape)?,
            layers: layers.collect::<Result<_, _>>()?,
            heads: shape.num_attention_heads,
            hidden,
            activation: folder.activation,
            pooling: folder.pooling,
        })
    }

    /// Returns the vectors of `texts`, which are given as tokens. Each text must have at least one
    /// token, and no more than the limit given to [`BertNetwork::read`]. `desk` contains scratch
    /// buffers.
    pub(crate) fn vectors(&self, texts: &[&[u32]], desk: &mut ForwardPassBuffers) -> Vec<Vec<f32>> {
        let hidden = self.hidden;
        let mut places = Vec::with_capacity(texts.len());
        desk.states.clear();
        desk.attention.clear();
        for text in texts {
            let begin = desk.states.len() / hidden;
            places.push(begin..begin + text.len());
            for token in *text {
                desk.states.extend_from_slice(
                    &self.token_embeddings[*token as usize * hidden..][..hidden],
                );
            }
            desk.attention.extend_from_slice(&self.position_embeddings[..text.len() * hidden]);
        }
        let nothing = vec![0.0; hidden];
        self.norm.add_and_normalize(&mut desk.states, &desk.attention, &nothing);
        for layer in &self.layers {
            self.run_layer(layer, &places, desk);
        }
        places
            .into_iter()
            .map(|rows| self.pool(&desk.states[rows.start * hidden..rows.end * hidden]))
            .collect()
    }

    fn run_layer(&self, layer: &BertLayer, places: &[Range<usize>], desk: &mut ForwardPassBuffers) {
        layer.qkv.apply(&desk.states, self.hidden, &mut desk.qkv, &mut desk.slices);
        add_bias(&mut desk.qkv, &layer.qkv.bias);
        for rows in places {
            self.attend(rows.clone(), desk);
        }
        layer.attention_output.apply(
            &desk.attention,
            self.hidden,
            &mut desk.sums,
            &mut desk.slices,
        );
        layer.attention_norm.add_and_normalize(
            &mut desk.states,
            &desk.sums,
            &layer.attention_output.bias,
        );
        layer.up.apply(&desk.states, self.hidden, &mut desk.up, &mut desk.slices);
        activate(&mut desk.up, &layer.up.bias, self.activation);
        layer.down.apply(&desk.up, layer.up.bias.len(), &mut desk.sums, &mut desk.slices);
        layer.output_norm.add_and_normalize(&mut desk.states, &desk.sums, &layer.down.bias);
    }

    /// Computes self-attention within the text in the rows `rows`, for each attention head. Reads
    /// and writes the buffers in `desk`.
    fn attend(&self, rows: Range<usize>, desk: &mut ForwardPassBuffers) {
        let hidden = self.hidden;
        let tokens = rows.len();
        let width = hidden / self.heads;
        let stride = 3 * hidden;
        let qkv = &desk.qkv[rows.start * stride..rows.end * stride];
        let attended = &mut desk.attention[rows.start * hidden..rows.end * hidden];
        desk.attention_weights.resize(tokens * tokens, 0.0);
        #[allow(clippy::cast_precision_loss, reason = "a head has some hundred numbers at most")]
        let scale = 1.0 / (width as f32).sqrt();
        for head in 0..self.heads {
            let at = head * width;
            let queries = MatrixRows { numbers: &qkv[at..], stride, rows: tokens };
            desk.keys.fill_from_columns(&qkv[hidden + at..], stride, width, tokens);
            desk.values.fill_from_rows(&qkv[2 * hidden + at..], stride, tokens, width);
            multiply(queries, &desk.keys, &mut desk.attention_weights, tokens, &mut desk.slices);
            softmax(&mut desk.attention_weights, tokens, scale);
            let numbers =
                MatrixRows { numbers: &desk.attention_weights, stride: tokens, rows: tokens };
            multiply(numbers, &desk.values, &mut attended[at..], hidden, &mut desk.slices);
        }
    }

    /// Pools the token vectors in `states` into one vector of length 1.
    fn pool(&self, states: &[f32]) -> Vec<f32> {
        let mut vector = states[..self.hidden].to_vec();
        match self.pooling {
            PoolingMethod::FirstToken => {}
            // The vector is normalized later, so the sum suffices.
            PoolingMethod::Mean => {
                for state in states[self.hidden..].chunks_exact(self.hidden) {
                    vector.iter_mut().zip(state).for_each(|(sum, number)| *sum += number);
                }
            }
        }
        let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|number| *number /= length);
        vector
    }
}

impl BertLayer {
    fn read(
        weights: &ModelWeights,
        shape: &ModelDimensions,
        at: usize,
    ) -> Result<Self, ModelFolderError> {
        let hidden = shape.hidden_size;
        let wide = shape.intermediate_size;
        let at = |name: &str| format!("encoder.layer.{at}.{name}");
        let names = ["query", "key", "value"].map(|name| at(&format!("attention.self.{name}")));
        let query_layer = LinearLayer::read(weights, &names, hidden, hidden)?;
        let attended = LinearLayer::read(weights, &[at("attention.output.dense")], hidden, hidden)?;
        Ok(Self {
            qkv: query_layer,
            attention_output: attended,
            attention_norm: read_norm(weights, &at("attention.output.LayerNorm"), shape)?,
            up: LinearLayer::read(weights, &[at("intermediate.dense")], hidden, wide)?,
            down: LinearLayer::read(weights, &[at("output.dense")], wide, hidden)?,
            output_norm: read_norm(weights, &at("output.LayerNorm"), shape)?,
        })
    }
}

impl LinearLayer {
    /// Reads the layers with these `names` and joins their columns to a single layer. Fails if a
    /// tensor is missing or invalid.
    fn read(
        weights: &ModelWeights,
        names: &[String],
        depth: usize,
        columns: usize,
    ) -> Result<Self, ModelFolderError> {
        let mut all = Vec::new();
        let mut bias = Vec::new();
        for name in names {
            all.extend(weights.read_tensor(&format!("{name}.weight"), &[columns, depth])?);
            bias.extend(weights.read_tensor(&format!("{name}.bias"), &[columns])?);
        }
        let mut weight = PackedMatrix::default();
        weight.fill_from_columns(&all, depth, depth, bias.len());
        Ok(Self { weight, bias })
    }

    /// Multiplies `states` (rows of `depth` numbers) by the layer's weights and writes the products
    /// to `out`, without adding the bias. `slices` is a scratch buffer.
    fn apply(
        &self,
        states: &[f32],
        depth: usize,
        out: &mut Vec<f32>,
        slices: &mut Vec<MatrixColumnSlice>,
    ) {
        let rows = states.len() / depth;
        out.resize(rows * self.bias.len(), 0.0);
        multiply(
            MatrixRows { numbers: states, stride: depth, rows },
            &self.weight,
            out,
            self.bias.len(),
            slices,
        );
    }
}

fn read_norm(
    weights: &ModelWeights,
    name: &str,
    shape: &ModelDimensions,
) -> Result<LayerNorm, ModelFolderError> {
    let columns = [shape.hidden_size];
    Ok(LayerNorm {
        weight: weights.read_tensor(&format!("{name}.weight"), &columns)?,
        bias: weights.read_tensor(&format!("{name}.bias"), &columns)?,
        epsilon: shape.layer_norm_eps,
    })
}
