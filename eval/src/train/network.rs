//! Trains a network that weighs features, so that the right candidate of a list comes first.

use toolgate_search::rank::network::RankingNetwork;

use super::random::SplitMix64;

/// Candidates for the answer to one question, each with its features.
pub(super) struct QuestionCandidateList {
    pub(super) features: Vec<Vec<f32>>,
    /// Index of the right answer in the list of candidates.
    pub(super) right: usize,
    /// Weight of the question in the training, relative to other questions.
    pub(super) weight: f32,
}

/// Settings for the training of a ranking network.
pub(super) struct NetworkTrainingSettings {
    /// Number of neurons in the hidden layer.
    pub(super) hidden: usize,
    pub(super) epochs: usize,
    pub(super) rate: f32,
    pub(super) decay: f32,
    pub(super) seed: u64,
}

/// Trains a network with `inputs` features on `lists` with the optimizer Adam.
pub(super) fn train(
    lists: &[&QuestionCandidateList],
    inputs: usize,
    settings: &NetworkTrainingSettings,
) -> RankingNetwork {
    let mut random = SplitMix64(settings.seed);
    let (means, scales) = means_and_scales(lists, inputs);
    let hidden = settings.hidden;
    let mut numbers: Vec<f32> = (0..hidden * (inputs + 1)).map(|_| random.normal() * 0.2).collect();
    numbers.extend((0..hidden).map(|_| random.normal() * 0.2));
    numbers.extend(std::iter::repeat_n(0.05, inputs));
    let mut first = vec![0.0_f32; numbers.len()];
    let mut second = vec![0.0_f32; numbers.len()];
    let mut order: Vec<usize> = (0..lists.len()).collect();
    let batch_size = 16;
    let mut round = 0.0_f32;
    #[allow(clippy::cast_precision_loss)]
    let rounds = (settings.epochs * lists.len().div_ceil(batch_size)) as f32;
    for _ in 0..settings.epochs {
        random.shuffle(&mut order);
        for batch in order.chunks(batch_size) {
            let mut gradient = vec![0.0_f32; numbers.len()];
            for &index in batch {
                add_gradient(lists[index], &numbers, &mut gradient, &means, &scales, hidden);
            }
            round += 1.0;
            let rate = settings.rate * (1.0 - round / rounds).max(0.01);
            let (first_correction, second_correction) =
                (1.0 - 0.9_f32.powf(round), 1.0 - 0.999_f32.powf(round));
            for index in 0..numbers.len() {
                let slope = gradient[index] / batch_size as f32;
                first[index] = 0.9 * first[index] + 0.1 * slope;
                second[index] = 0.999 * second[index] + 0.001 * slope * slope;
                let step = first[index]
                    / first_correction
                    / ((second[index] / second_correction).sqrt() + 1e-8);
                numbers[index] -= rate * (step + settings.decay * numbers[index]);
            }
        }
    }
    let second = numbers.split_off(hidden * (inputs + 1));
    let mut network = RankingNetwork {
        inputs,
        hidden,
        means,
        scales,
        hidden_weights: numbers,
        output_weights: second,
        calibration: [1.0, 0.0],
    };
    network.calibration = calibrate(&network, lists);
    network
}

/// Returns the factor and offset that turn a score into the logit of a probability. The probability
/// of a score matches the share of right candidates with that score.
fn calibrate(network: &RankingNetwork, lists: &[&QuestionCandidateList]) -> [f32; 2] {
    let mut scored = Vec::new();
    for list in lists {
        let scores = list.features.iter().map(|it| network.score(it)).enumerate();
        scored
            .extend(scores.map(|(index, score)| (score, f32::from(u8::from(index == list.right)))));
    }
    let mut slope = 1.0_f32;
    let mut offset = 0.0_f32;
    #[allow(clippy::cast_precision_loss)]
    let count = scored.len() as f32;
    // Newton's method on the log-likelihood, a smooth function of two numbers.
    for _ in 0..50 {
        let mut g = [0.0_f32; 2];
        let mut h = [1e-3_f32, 0.0, 1e-3];
        for (score, right) in &scored {
            let likelihood = 1.0 / (1.0 + (-(slope * score + offset)).exp());
            let error = (likelihood - right) / count;
            let curve = likelihood * (1.0 - likelihood) / count;
            g[0] += error * score;
            g[1] += error;
            h[0] += curve * score * score;
            h[1] += curve * score;
            h[2] += curve;
        }
        let determinant = h[0] * h[2] - h[1] * h[1];
        slope -= ((h[2] * g[0] - h[1] * g[1]) / determinant).clamp(-0.5, 0.5);
        offset -= ((h[0] * g[1] - h[1] * g[0]) / determinant).clamp(-0.5, 0.5);
    }
    [slope, offset]
}

/// Adds the gradient of the loss on one list to `gradient`. `numbers` are the parameters of the
/// network.
fn add_gradient(
    list: &QuestionCandidateList,
    numbers: &[f32],
    gradient: &mut [f32],
    means: &[f32],
    scales: &[f32],
    hidden: usize,
) {
    let inputs = means.len();
    let (layer, rest) = numbers.split_at(hidden * (inputs + 1));
    let (output_weights, direct_weights) = rest.split_at(hidden);
    let mut scores = Vec::with_capacity(list.features.len());
    let mut inputs_and_neurons = Vec::with_capacity(list.features.len());
    for features in &list.features {
        let input: Vec<f32> = features
            .iter()
            .zip(means.iter().zip(scales))
            .map(|(it, (mean, scale))| (it - mean) * scale)
            .collect();
        let neurons: Vec<f32> = layer
            .chunks_exact(inputs + 1)
            .map(|weights| {
                let sum: f32 = input.iter().zip(weights).map(|(a, b)| a * b).sum();
                (sum + weights[inputs]).max(0.0)
            })
            .collect();
        let score: f32 = neurons.iter().zip(output_weights).map(|(a, b)| a * b).sum::<f32>()
            + input.iter().zip(direct_weights).map(|(a, b)| a * b).sum::<f32>();
        scores.push(score);
        inputs_and_neurons.push((input, neurons));
    }
    let max = scores.iter().copied().fold(f32::MIN, f32::max);
    let sum: f32 = scores.iter().map(|it| (it - max).exp()).sum();
    for (index, (input, neurons)) in inputs_and_neurons.iter().enumerate() {
        let mut slope = (scores[index] - max).exp() / sum;
        if index == list.right {
            slope -= 1.0;
        }
        slope *= list.weight;
        if slope.abs() < 1e-5 {
            continue;
        }
        let (to_layer, to_rest) = gradient.split_at_mut(hidden * (inputs + 1));
        for (neuron, output_weight) in output_weights.iter().enumerate() {
            to_rest[neuron] += slope * neurons[neuron];
            if neurons[neuron] > 0.0 {
                let slope = slope * output_weight;
                let from = neuron * (inputs + 1);
                for (into, it) in to_layer[from..from + inputs].iter_mut().zip(input) {
                    *into += slope * it;
                }
                to_layer[from + inputs] += slope;
            }
        }
        for (into, it) in to_rest[hidden..].iter_mut().zip(input) {
            *into += slope * it;
        }
    }
}

/// Returns the mean of each feature over all candidates, and the inverse of its standard deviation.
#[allow(clippy::cast_precision_loss)]
fn means_and_scales(lists: &[&QuestionCandidateList], inputs: usize) -> (Vec<f32>, Vec<f32>) {
    let mut sums = vec![(0.0_f64, 0.0_f64); inputs];
    let mut count = 0.0_f64;
    for list in lists {
        for features in &list.features {
            count += 1.0;
            for (sum, it) in sums.iter_mut().zip(features) {
                sum.0 += f64::from(*it);
                sum.1 += f64::from(*it) * f64::from(*it);
            }
        }
    }
    sums.into_iter()
        .map(|(sum, squares)| {
            let mean = sum / count;
            let deviation = (squares / count - mean * mean).max(0.0).sqrt();
            #[allow(clippy::cast_possible_truncation)]
            let pair = (mean as f32, if deviation < 1e-4 { 0.0 } else { (1.0 / deviation) as f32 });
            pair
        })
        .unzip()
}
