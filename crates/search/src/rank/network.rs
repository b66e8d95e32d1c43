//! A small network that weighs features: learned beforehand, two layers, microseconds.

/// Numbers in, one number out: the higher, the likelier.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// How many numbers go in.
    pub inputs: usize,
    /// How many neurons there are.
    pub hidden: usize,
    /// What is taken from each input, and by what the rest is multiplied.
    pub means: Vec<f32>,
    /// See `means`.
    pub scales: Vec<f32>,
    /// Of each neuron its weights, and its bias after them.
    pub first: Vec<f32>,
    /// Of each neuron what it says; then of each input what it says by itself.
    pub second: Vec<f32>,
    /// By what a score is multiplied and then raised to be the logit of how likely it is right.
    pub likely: [f32; 2],
}

impl Network {
    /// What it makes of `features`.
    pub fn score(&self, features: &[f32]) -> f32 {
        let input: Vec<f32> = features
            .iter()
            .zip(self.means.iter().zip(&self.scales))
            .map(|(it, (mean, scale))| (it - mean) * scale)
            .collect();
        let (neurons, direct) = self.second.split_at(self.hidden);
        let mut score: f32 = input.iter().zip(direct).map(|(a, b)| a * b).sum();
        for (weights, says) in self.first.chunks_exact(self.inputs + 1).zip(neurons) {
            let (weights, bias) = weights.split_at(self.inputs);
            let sum: f32 = input.iter().zip(weights).map(|(a, b)| a * b).sum();
            score += says * (sum + bias[0]).max(0.0);
        }
        score
    }

    /// The logit of how likely a candidate with `features` is the right one.
    pub fn logit(&self, features: &[f32]) -> f32 {
        self.score(features) * self.likely[0] + self.likely[1]
    }

    /// The network that `bytes` hold: inputs and neurons, then all numbers in order.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let numbers: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|it| u32::from_le_bytes(it.try_into().unwrap_or_default()))
            .collect();
        let (&inputs, rest) = numbers.split_first()?;
        let (&hidden, rest) = rest.split_first()?;
        let (inputs, hidden) = (inputs as usize, hidden as usize);
        let mut rest = rest.iter().map(|it| f32::from_bits(*it));
        let mut take = |count: usize| -> Option<Vec<f32>> {
            let taken: Vec<f32> = rest.by_ref().take(count).collect();
            (taken.len() == count).then_some(taken)
        };
        let likely = take(2)?;
        Some(Self {
            likely: [likely[0], likely[1]],
            inputs,
            hidden,
            means: take(inputs)?,
            scales: take(inputs)?,
            first: take(hidden * (inputs + 1))?,
            second: take(hidden + inputs)?,
        })
    }

    /// As bytes; see [`Network::of`].
    pub fn bytes(&self) -> Vec<u8> {
        let counts = [self.inputs, self.hidden].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
        let parts = [&self.likely[..], &self.means, &self.scales, &self.first, &self.second];
        let numbers = parts.into_iter().flatten().map(|it| it.to_bits());
        counts.into_iter().chain(numbers).flat_map(u32::to_le_bytes).collect()
    }
}
