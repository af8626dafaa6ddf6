//! Tests with a real model. Each loads it and computes on all cores, so they run one after the other.

mod adapters;
mod calling;
mod crowd;
mod drafts;
mod echo;
mod exactness;
mod footprint;
mod home_assistant;
mod house;
mod killed;
mod meaning;
mod opaque;
mod other_models;
mod process;
mod recording;
mod restarts;
mod rewinding;
mod saving;
mod sharing;
mod solo;
mod tiny;
mod writing;
