//! A small, pre-trained neural network with two layers that scores features in microseconds.

/// A neural network that scores a candidate. A higher score is better.
#[derive(Debug, Clone, PartialEq)]
pub struct RankingNetwork {
    /// Number of inputs of the network.
    pub inputs: usize,
    /// Number of hidden neurons of the network.
    pub hidden: usize,
    /// Mean of each input of the network, which is subtracted before scaling.
    pub means: Vec<f32>,
    /// Factor for each input of the network, applied after the mean is subtracted.
    pub scales: Vec<f32>,
    /// Weights of each hidden neuron, followed by its bias.
    pub hidden_weights: Vec<f32>,
    /// Output weight of each hidden neuron, then a direct output weight of each input.
    pub output_weights: Vec<f32>,
    /// Factor and offset that turn a score into the logit of a probability.
    pub calibration: [f32; 2],
}

impl RankingNetwork {
    /// Returns the network's score of a candidate with `features`.
    pub fn score(&self, features: &[f32]) -> f32 {
        let input: Vec<f32> = features
            .iter()
            .zip(self.means.iter().zip(&self.scales))
            .map(|(it, (mean, scale))| (it - mean) * scale)
            .collect();
        let (neurons, direct) = self.output_weights.split_at(self.hidden);
        let mut score: f32 = input.iter().zip(direct).map(|(a, b)| a * b).sum();
        for (weights, says) in self.hidden_weights.chunks_exact(self.inputs + 1).zip(neurons) {
            let (weights, bias) = weights.split_at(self.inputs);
            let sum: f32 = input.iter().zip(weights).map(|(a, b)| a * b).sum();
            score += says * (sum + bias[0]).max(0.0);
        }
        score
    }

    /// Returns the logit of the probability that a candidate with `features` matches the query.
    pub fn logit(&self, features: &[f32]) -> f32 {
        self.score(features) * self.calibration[0] + self.calibration[1]
    }

    /// Parses a network from `bytes`: the numbers of inputs and neurons, then all numbers in order.
    /// `None` if `bytes` is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let numbers: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|it| u32::from_le_bytes(it.try_into().unwrap_or_default()))
            .collect();
        let (&inputs, rest) = numbers.split_first()?;
        let (&hidden, rest) = rest.split_first()?;
        let inputs = inputs as usize;
        let hidden = hidden as usize;
        let mut rest = rest.iter().map(|it| f32::from_bits(*it));
        let mut take = |count: usize| -> Option<Vec<f32>> {
            let taken: Vec<f32> = rest.by_ref().take(count).collect();
            (taken.len() == count).then_some(taken)
        };
        let likely = take(2)?;
        Some(Self {
            calibration: [likely[0], likely[1]],
            inputs,
            hidden,
            means: take(inputs)?,
            scales: take(inputs)?,
            hidden_weights: take(hidden * (inputs + 1))?,
            output_weights: take(hidden + inputs)?,
        })
    }

    /// Serializes the network for [`RankingNetwork::parse`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let counts = [self.inputs, self.hidden].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
        let parts = [
            &self.calibration[..],
            &self.means,
            &self.scales,
            &self.hidden_weights,
            &self.output_weights,
        ];
        let numbers = parts.into_iter().flatten().map(|it| it.to_bits());
        counts.into_iter().chain(numbers).flat_map(u32::to_le_bytes).collect()
    }
}
