/* SPDX-License-Identifier: Apache-2.0 */
/* The JNI library of Adds.java. */
#include <jni.h>
#include <stddef.h>

#include "adder.h"

JNIEXPORT jint JNICALL Java_Adds_open(JNIEnv *env, jclass class);
JNIEXPORT jint JNICALL Java_Adds_run(JNIEnv *env, jclass class);

jint Java_Adds_open(JNIEnv *env, jclass class)
{
	(void)env;
	(void)class;
	return adder_open("libcuda.so.1", 0);
}

jint Java_Adds_run(JNIEnv *env, jclass class)
{
	struct adder *a = adder_new();

	(void)env;
	(void)class;
	return a ? adder_run(a) : -1;
}
