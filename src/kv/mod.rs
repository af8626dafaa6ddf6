//! The K/V cache: what the cells hold (tree), who may use how many (budget), and the two joined over the engine (cache).

pub mod tree;
