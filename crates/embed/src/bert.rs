//! The BERT network: turns token embeddings into contextual ones and pools them.

use std::ops::Range;

use crate::curves::{Norm, add_bias, bend, shares};
use crate::folder::{Bend, Folder, Pooling, Shape};
use crate::kernel::Slice;
use crate::matrix::{Left, Packed, multiply};
use crate::weights::Weights;
use crate::wrong::NotAModel;

/// A BERT network with packed weights.
#[derive(Debug)]
pub(crate) struct Bert {
    /// Embedding of each token, concatenated.
    words: Vec<f32>,
    /// Embedding of each position, plus that of the first segment.
    positions: Vec<f32>,
    norm: Norm,
    layers: Vec<Layer>,
    heads: usize,
    hidden: usize,
    bend: Bend,
    pooling: Pooling,
}

#[derive(Debug)]
struct Layer {
    /// Projections to queries, keys and values, side by side.
    asked: Linear,
    attended: Linear,
    attended_norm: Norm,
    up: Linear,
    down: Linear,
    norm: Norm,
}

#[derive(Debug)]
struct Linear {
    weight: Packed,
    bias: Vec<f32>,
}

/// Scratch buffers of a pass, kept to avoid new allocations.
#[derive(Default)]
pub(crate) struct Desk {
    states: Vec<f32>,
    asked: Vec<f32>,
    attended: Vec<f32>,
    up: Vec<f32>,
    sums: Vec<f32>,
    shares: Vec<f32>,
    keys: Packed,
    values: Packed,
    slices: Vec<Slice>,
}

impl Bert {
    pub(crate) fn read(
        folder: &Folder,
        weights: &Weights,
        tokens_max: usize,
    ) -> Result<Self, NotAModel> {
        let shape = &folder.shape;
        let hidden = shape.hidden_size;
        let at = |name: &str| format!("embeddings.{name}.weight");
        let words = weights.tensor(&at("word_embeddings"), &[shape.vocab_size, hidden])?;
        let places = [shape.max_position_embeddings, hidden];
        let mut positions = weights.tensor(&at("position_embeddings"), &places)?;
        positions.truncate(tokens_max * hidden);
        positions.shrink_to_fit();
        let kinds = [shape.type_vocab_size, hidden];
        let kinds = weights.tensor(&at("token_type_embeddings"), &kinds)?;
        add_bias(&mut positions, &kinds[..hidden]);
        let layers = (0..shape.num_hidden_layers).map(|at| Layer::read(weights, shape, at));
        Ok(Self {
            words,
            positions,
            norm: norm(weights, "embeddings.LayerNorm", shape)?,
            layers: layers.collect::<Result<_, _>>()?,
            heads: shape.num_attention_heads,
            hidden,
            bend: folder.bend,
            pooling: folder.pooling,
        })
    }

    /// Returns the vectors of `texts`, given as tokens. Each text must have at least one token, and
    /// no more than the limit given to [`Bert::read`].
    pub(crate) fn vectors(&self, texts: &[&[u32]], desk: &mut Desk) -> Vec<Vec<f32>> {
        let hidden = self.hidden;
        let mut places = Vec::with_capacity(texts.len());
        desk.states.clear();
        desk.attended.clear();
        for text in texts {
            let begin = desk.states.len() / hidden;
            places.push(begin..begin + text.len());
            for token in *text {
                desk.states.extend_from_slice(&self.words[*token as usize * hidden..][..hidden]);
            }
            desk.attended.extend_from_slice(&self.positions[..text.len() * hidden]);
        }
        let nothing = vec![0.0; hidden];
        self.norm.add(&mut desk.states, &desk.attended, &nothing);
        for layer in &self.layers {
            self.pass(layer, &places, desk);
        }
        places
            .into_iter()
            .map(|rows| self.pooled(&desk.states[rows.start * hidden..rows.end * hidden]))
            .collect()
    }

    fn pass(&self, layer: &Layer, places: &[Range<usize>], desk: &mut Desk) {
        layer.asked.apply(&desk.states, self.hidden, &mut desk.asked, &mut desk.slices);
        add_bias(&mut desk.asked, &layer.asked.bias);
        for rows in places {
            self.attend(rows.clone(), desk);
        }
        layer.attended.apply(&desk.attended, self.hidden, &mut desk.sums, &mut desk.slices);
        layer.attended_norm.add(&mut desk.states, &desk.sums, &layer.attended.bias);
        layer.up.apply(&desk.states, self.hidden, &mut desk.up, &mut desk.slices);
        bend(&mut desk.up, &layer.up.bias, self.bend);
        layer.down.apply(&desk.up, layer.up.bias.len(), &mut desk.sums, &mut desk.slices);
        layer.norm.add(&mut desk.states, &desk.sums, &layer.down.bias);
    }

    /// Computes self-attention within the text in `rows`, for each head.
    fn attend(&self, rows: Range<usize>, desk: &mut Desk) {
        let hidden = self.hidden;
        let tokens = rows.len();
        let width = hidden / self.heads;
        let stride = 3 * hidden;
        let asked = &desk.asked[rows.start * stride..rows.end * stride];
        let attended = &mut desk.attended[rows.start * hidden..rows.end * hidden];
        desk.shares.resize(tokens * tokens, 0.0);
        #[allow(clippy::cast_precision_loss, reason = "a head has some hundred numbers at most")]
        let scale = 1.0 / (width as f32).sqrt();
        for head in 0..self.heads {
            let at = head * width;
            let queries = Left { numbers: &asked[at..], stride, rows: tokens };
            desk.keys.fill_from_columns(&asked[hidden + at..], stride, width, tokens);
            desk.values.fill_from_rows(&asked[2 * hidden + at..], stride, tokens, width);
            multiply(queries, &desk.keys, &mut desk.shares, tokens, &mut desk.slices);
            shares(&mut desk.shares, tokens, scale);
            let numbers = Left { numbers: &desk.shares, stride: tokens, rows: tokens };
            multiply(numbers, &desk.values, &mut attended[at..], hidden, &mut desk.slices);
        }
    }

    /// Pools the token vectors in `states` into one vector of length 1.
    fn pooled(&self, states: &[f32]) -> Vec<f32> {
        let mut vector = states[..self.hidden].to_vec();
        match self.pooling {
            Pooling::First => {}
            // The vector is normalized later, so the sum suffices.
            Pooling::Mean => {
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

impl Layer {
    fn read(weights: &Weights, shape: &Shape, at: usize) -> Result<Self, NotAModel> {
        let hidden = shape.hidden_size;
        let wide = shape.intermediate_size;
        let at = |name: &str| format!("encoder.layer.{at}.{name}");
        let names = ["query", "key", "value"].map(|name| at(&format!("attention.self.{name}")));
        let asked = Linear::read(weights, &names, hidden, hidden)?;
        let attended = Linear::read(weights, &[at("attention.output.dense")], hidden, hidden)?;
        Ok(Self {
            asked,
            attended,
            attended_norm: norm(weights, &at("attention.output.LayerNorm"), shape)?,
            up: Linear::read(weights, &[at("intermediate.dense")], hidden, wide)?,
            down: Linear::read(weights, &[at("output.dense")], wide, hidden)?,
            norm: norm(weights, &at("output.LayerNorm"), shape)?,
        })
    }
}

impl Linear {
    /// Reads the layers with these `names` and places them side by side.
    fn read(
        weights: &Weights,
        names: &[String],
        depth: usize,
        columns: usize,
    ) -> Result<Self, NotAModel> {
        let mut all = Vec::new();
        let mut bias = Vec::new();
        for name in names {
            all.extend(weights.tensor(&format!("{name}.weight"), &[columns, depth])?);
            bias.extend(weights.tensor(&format!("{name}.bias"), &[columns])?);
        }
        let mut weight = Packed::default();
        weight.fill_from_columns(&all, depth, depth, bias.len());
        Ok(Self { weight, bias })
    }

    /// Multiplies `states`, rows of `depth` numbers, by the weight into `out`, without the bias.
    fn apply(&self, states: &[f32], depth: usize, out: &mut Vec<f32>, slices: &mut Vec<Slice>) {
        let rows = states.len() / depth;
        out.resize(rows * self.bias.len(), 0.0);
        multiply(
            Left { numbers: states, stride: depth, rows },
            &self.weight,
            out,
            self.bias.len(),
            slices,
        );
    }
}

fn norm(weights: &Weights, name: &str, shape: &Shape) -> Result<Norm, NotAModel> {
    let columns = [shape.hidden_size];
    Ok(Norm {
        weight: weights.tensor(&format!("{name}.weight"), &columns)?,
        bias: weights.tensor(&format!("{name}.bias"), &columns)?,
        epsilon: shape.layer_norm_eps,
    })
}
