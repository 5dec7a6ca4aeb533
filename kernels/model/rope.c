/* RoPE frequencies: one inverse frequency per pair of a head's halves, and one
 * factor on cos and sin (yarn only). Computed in double, once per load.
 *
 * llama3 keeps short wavelengths, stretches long ones by `factor` and blends
 * between; yarn ramps between the two over the dimension index; linear divides
 * every frequency (the same as dividing positions); factors divides each by its own
 * (how GGUF files write llama3 down).
 */
#include <math.h>
#include "kernels/model/model.h"

static double llama3_freq(const struct rope_config *c, double f)
{
	double wavelength = 2 * M_PI / f;
	double low = c->orig_max / c->low_freq_factor;
	double high = c->orig_max / c->high_freq_factor;
	if (wavelength < high)
		return f;
	if (wavelength > low)
		return f / c->factor;
	double s = (c->orig_max / wavelength - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
	return f * ((1 - s) / c->factor + s);
}

/* The (fractional) dimension pair whose wavelength fits `rotations` times into the original length. */
static double yarn_dim(const struct rope_config *c, int hd, double rotations)
{
	return hd * log(c->orig_max / (rotations * 2 * M_PI)) / (2 * log(c->theta));
}

static double yarn_scale(double s, double coefficient)
{
	return s <= 1 ? 1 : 0.1 * coefficient * log(s) + 1;
}

static void yarn_table(const struct rope_config *c, int hd, real *ret_inv_freq, real *ret_mscale)
{
	double lo = floor(yarn_dim(c, hd, c->beta_fast));
	double hi = ceil(yarn_dim(c, hd, c->beta_slow));
	lo = lo < 0 ? 0 : lo;
	hi = hi > hd - 1 ? hd - 1 : hi;
	if (lo == hi)
		hi += 0.001;
	for (int i = 0; i < hd / 2; i++) {
		double f = pow(c->theta, -2.0 * i / hd);
		double ramp = (i - lo) / (hi - lo);
		ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
		ret_inv_freq[i] = (real)(f / c->factor * ramp + f * (1 - ramp));
	}
	*ret_mscale = (real)(yarn_scale(c->factor, c->mscale) / yarn_scale(c->factor, c->mscale_all_dim));
}

void rope_table(const struct rope_config *c, int hd, real *ret_inv_freq, real *ret_mscale)
{
	if (c->kind == ROPE_YARN) {
		yarn_table(c, hd, ret_inv_freq, ret_mscale);
		return;
	}
	for (int i = 0; i < hd / 2; i++) {
		double f = pow(c->theta, -2.0 * i / hd);
		if (c->kind == ROPE_LLAMA3)
			f = llama3_freq(c, f);
		else if (c->kind == ROPE_LINEAR)
			f /= c->factor;
		else if (c->kind == ROPE_FACTORS)
			f /= (double)c->factors[i];
		ret_inv_freq[i] = (real)f;
	}
	*ret_mscale = 1;
}
